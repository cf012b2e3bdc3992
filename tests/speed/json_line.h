// One JSON object in one line.
#ifndef BRIDGE_TESTS_SPEED_JSON_LINE_H_
#define BRIDGE_TESTS_SPEED_JSON_LINE_H_

#include <stdint.h>
#include <stdio.h>

#include <cmath>
#include <string>

namespace bridge::speed {

class JsonLine {
 public:
  explicit JsonLine(const char* record) { add("record", record); }
  JsonLine() = default;

  JsonLine& add(const char* name, const std::string& value) {
    std::string text = "\"";
    for (const char c : value) {
      char code[8];
      if (static_cast<unsigned char>(c) < 0x20)
        snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(c));
      else
        snprintf(code, sizeof code, c == '"' || c == '\\' ? "\\%c" : "%c", c);
      text += code;
    }
    return put(name, text + "\"");
  }
  // Or it would be a bool.
  JsonLine& add(const char* name, const char* value) { return add(name, std::string(value)); }
  JsonLine& add(const char* name, int64_t value) { return put(name, std::to_string(value)); }
  JsonLine& add(const char* name, bool value) { return put(name, value ? "true" : "false"); }
  JsonLine& add(const char* name, double value) {
    char text[32];
    snprintf(text, sizeof text, "%.6g", value);
    return put(name, std::isfinite(value) ? text : "null");
  }
  JsonLine& add(const char* name, const JsonLine& value) { return put(name, value.text()); }

  std::string text() const { return "{" + fields_ + "}"; }

 private:
  JsonLine& put(const char* name, const std::string& value) {
    fields_ += (fields_.empty() ? "\"" : ", \"") + std::string(name) + "\": " + value;
    return *this;
  }
  std::string fields_;
};

}  // namespace bridge::speed

#endif  // BRIDGE_TESTS_SPEED_JSON_LINE_H_
