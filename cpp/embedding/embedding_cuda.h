// The loading of the kernels of embeddings, for the CUDA library.
#ifndef BRIDGE_EMBEDDING_EMBEDDING_CUDA_H_
#define BRIDGE_EMBEDDING_EMBEDDING_CUDA_H_

namespace bridge::embedding {

// Loads every kernel onto the current device; returns NULL or an error message.
const char* load_kernels();

}  // namespace bridge::embedding

#endif  // BRIDGE_EMBEDDING_EMBEDDING_CUDA_H_
