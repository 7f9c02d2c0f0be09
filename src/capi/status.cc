#include "capi/status.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>

#include "support/error.h"

namespace heteroplace::capi {

namespace {

constexpr char kNoMemory[] = "the host has no memory left; free some, or use fewer requests";

/*! \brief Text of the thread's last failure; null where there was no memory to keep it. */
struct KeptText {
  std::string text;
  const char* shown = "";
};

KeptText& Kept() {
  thread_local KeptText kept;
  return kept;
}

heteroplace_status Keep(heteroplace_status status, const char* text) noexcept {
  KeptText& kept = Kept();
  try {
    kept.text = text;
    kept.shown = kept.text.c_str();
  } catch (const std::bad_alloc&) {
    kept.shown = kNoMemory;
  }
  return status;
}

}  // namespace

const char* LastError() noexcept { return Kept().shown; }

heteroplace_status StatusOfException() noexcept {
  try {
    throw;
  } catch (const Fault& fault) {
    return Keep(fault.status(), fault.what());
  } catch (const Error& error) {
    const bool is_file = error.kind() == ErrorKind::kArtifact;
    return Keep(is_file ? HETEROPLACE_BAD_FILE : HETEROPLACE_FAILED, error.what());
  } catch (const std::bad_alloc&) {
    return Keep(HETEROPLACE_OUT_OF_MEMORY, kNoMemory);
  } catch (const std::exception& error) {
    return Keep(HETEROPLACE_INTERNAL, error.what());
  } catch (...) {
    return Keep(HETEROPLACE_INTERNAL, "an exception of an unknown type");
  }
}

void ExpectNotNull(const void* pointer, const char* what) {
  if (pointer == nullptr) {
    throw Fault(HETEROPLACE_BAD_ARGUMENT, std::string(what) + " is NULL; pass one");
  }
}

size_t ExpectStruct(const void* given, size_t first, size_t known, const std::string& what) {
  constexpr size_t kMaxBytes = 4096;  // more is no size
  size_t size = 0;
  std::memcpy(&size, given, sizeof(size));
  if (size < first || size > kMaxBytes) {
    throw Fault(HETEROPLACE_BAD_ARGUMENT, "struct_size of " + what + " is " + std::to_string(size) +
                                              "; set it to the size of the struct, " +
                                              std::to_string(known) + " bytes");
  }
  if (size <= known) return size;
  const auto* bytes = static_cast<const char*>(given);
  if (std::any_of(bytes + known, bytes + size, [](char byte) { return byte != 0; })) {
    throw Fault(HETEROPLACE_BAD_ARGUMENT,
                what + ": has fields that this library, of version " +
                    std::to_string(HETEROPLACE_API_VERSION) +
                    " of the interface, does not have; use a later one, or leave them zero");
  }
  return known;
}

}  // namespace heteroplace::capi
