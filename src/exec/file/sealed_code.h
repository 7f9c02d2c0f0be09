// The bytes of a library of kernels -> memory that loaders take by a path and nobody can write to.
#pragma once

#include <string>

namespace heteroplace::exec {

/*!
 * \brief A copy of a library that can be loaded by a path.
 *
 * The system's loader takes paths alone; this one is of a file without a name: it is gone with the
 * process however that ends, and what lies on disk may be replaced meanwhile. The path stays that
 * of this copy as long as the object lives. Keep it until those who loaded it have let go of it.
 */
class SealedCode {
 public:
  /*!
   * \param name of the library, for messages.
   * \param image its bytes.
   * \throws Error kExecution: the system has no memory for it.
   */
  SealedCode(const std::string& name, const std::string& image);
  ~SealedCode();
  SealedCode(const SealedCode&) = delete;
  SealedCode& operator=(const SealedCode&) = delete;

  /*! \brief What loaders take. */
  const std::string& path() const { return path_; }

 private:
  int descriptor_ = -1;
  std::string path_;
};

}  // namespace heteroplace::exec
