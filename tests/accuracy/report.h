// One row per measured function, printed as a table or as JSON.
#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace accuracy {

struct Row {
  std::string name;
  double worst = 0;          // largest error outside the window around a zero, in ULP of the result
  double where = 0;          // the input of this error
  double bound = 0;          // the bound of `worst`
  double window = 0;         // half width of the window around a zero of the function; 0: none
  double needed = 0;         // largest distance from the zero of an error above `bound`
  double near_zero = 0;      // largest absolute error within the window
  double near_bound = 0;     // the bound of `near_zero`
  long long different = -1;  // 16-bit only: results that are not correctly rounded
  long long inputs = 0;

  bool passed() const { return worst <= bound && near_zero <= near_bound; }

  void merge(const Row& other) {
    if (other.worst > worst) {
      worst = other.worst;
      where = other.where;
    }
    if (other.needed > needed) needed = other.needed;
    if (other.near_zero > near_zero) near_zero = other.near_zero;
    if (other.different > 0) different += other.different;
    inputs += other.inputs;
  }
};

struct Report {
  std::vector<Row> rows;

  bool passed() const {
    for (const Row& row : rows)
      if (!row.passed()) return false;
    return true;
  }

  void print(std::ostream& out) const {
    char line[256];
    for (const Row& row : rows) {
      std::snprintf(line, sizeof line, "%-4s %-28s %.4f ULP (bound %.4g) at %.9g",
                    row.passed() ? "ok" : "FAIL", row.name.c_str(), row.worst, row.bound,
                    row.where);
      out << line;
      if (row.window > 0) {
        std::snprintf(line, sizeof line,
                      "; within %.3g of the zero %.3g absolute (bound %.3g), over the ULP bound "
                      "within %.3g",
                      row.window, row.near_zero, row.near_bound, row.needed);
        out << line;
      }
      if (row.different >= 0) out << "; not correctly rounded: " << row.different;
      out << " [" << row.inputs << " inputs]\n";
    }
  }

  void print_json(std::ostream& out) const {
    out << "[\n";
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const Row& row = rows[i];
      char line[512];
      std::snprintf(line, sizeof line,
                    "  {\"name\": \"%s\", \"passed\": %s, \"max_ulp\": %.6f, \"at\": %.17g, "
                    "\"bound_ulp\": %.6g, \"window\": %.6g, \"window_needed\": %.6g, "
                    "\"window_abs\": %.6g, \"window_abs_bound\": %.6g, \"different\": %lld, "
                    "\"inputs\": %lld}%s\n",
                    row.name.c_str(), row.passed() ? "true" : "false", row.worst, row.where,
                    row.bound, row.window, row.needed, row.near_zero, row.near_bound, row.different,
                    row.inputs, i + 1 < rows.size() ? "," : "");
      out << line;
    }
    out << "]\n";
  }
};

}  // namespace accuracy
