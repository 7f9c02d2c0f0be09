#include "exec/devices/library_kernel.h"

namespace heteroplace::exec {

namespace {

/*! \brief What parts have registered. */
std::vector<LibraryReader>& Readers() {
  static std::vector<LibraryReader> readers;
  return readers;
}

}  // namespace

void RegisterLibrary(const LibraryReader& reader) { Readers().push_back(reader); }

std::shared_ptr<const LibraryKernel> ReadLibraryKernel(std::string_view symbol) {
  for (const LibraryReader& reader : Readers()) {
    if (symbol.starts_with(reader.prefix)) return reader.read(symbol);
  }
  return nullptr;
}

}  // namespace heteroplace::exec
