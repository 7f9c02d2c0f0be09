// What a function of the C interface failed of, and how it gets to its caller.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>

#include "capi/heteroplace.h"

namespace heteroplace::capi {

/*! \brief A fault with the status that the caller gets. */
class Fault : public std::runtime_error {
 public:
  Fault(heteroplace_status status, const std::string& text)
      : std::runtime_error(text), status_(status) {}

  heteroplace_status status() const { return status_; }

 private:
  heteroplace_status status_;
};

/*! \brief The status of the exception that is being handled; keeps its text for the thread. */
heteroplace_status StatusOfException() noexcept;

/*! \brief The text that was kept last. */
const char* LastError() noexcept;

/*! \brief Does the work of a function of the interface. */
template <typename Work>
heteroplace_status Guarded(const Work& work) noexcept {
  try {
    work();
    return HETEROPLACE_OK;
  } catch (...) {
    return StatusOfException();
  }
}

/*! \throws Fault if a pointer that a function needs is null. */
void ExpectNotNull(const void* pointer, const char* what);

/*!
 * \brief Checks a struct of the interface, which begins with its size.
 * \param first size of the struct in the first version that had it.
 * \param known size of the struct in this version.
 * \return how many of its bytes are known: of an earlier header fewer than in this version.
 * \throws Fault if it is smaller, or if fields behind it, of a later header, are not zero.
 */
size_t ExpectStruct(const void* given, size_t first, size_t known, const std::string& what);

}  // namespace heteroplace::capi
