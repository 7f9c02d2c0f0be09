#pragma once

#include <exception>
#include <new>
#include <stdexcept>
#include <string>

namespace heteroplace {

/*! \brief What went wrong, as one of the exception types of heteroplace/errors.py. */
enum class ErrorKind {
  kGraph,
  kCluster,
  kPlan,
  kInfeasible,
  kSolverLimit,
  kMissingCost,
  kArtifact,
  kExecution
};

/*!
 * \brief An error of the core. The bindings rethrow it as the Python exception of the same kind.
 *
 * The text follows the rules of heteroplace/errors.py: what, where, expected and got, how to mend.
 */
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& text) : std::runtime_error(text), kind_(kind) {}

  /*! \brief Selects the Python exception type. */
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

/*! \brief What is said of memory that cannot be had. Strings keep it without an allocation. */
inline constexpr const char* kMemoryIsShort = "memory is short";

/*! \brief What went wrong, as text that lives as long as the exception. */
inline const char* CauseOf(const std::exception& fault) {
  return dynamic_cast<const std::bad_alloc*>(&fault) != nullptr ? kMemoryIsShort : fault.what();
}

}  // namespace heteroplace
