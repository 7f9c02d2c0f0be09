// What the fakes of NVIDIA's libraries share: the objects that they hand out, and code that comes
// to a device at its first use.
#pragma once

#include "fake.h"

namespace fake {

/*! \brief Anything that a library hands out. */
struct LibraryObject {
  virtual ~LibraryObject() = default;
};

struct LibraryState {
  std::mutex mutex;
  std::map<void*, std::shared_ptr<LibraryObject>> objects;
  /*! \brief Device, and library and number of algorithms whose code has come there. */
  std::set<std::pair<int, std::string>> loaded;
};

inline LibraryState& TheLibraries() {
  static LibraryState* state = new LibraryState;
  return *state;
}

/*! \brief Tables and scratch memory of the libraries begin at multiples of this. */
inline constexpr uintptr_t kScratchAlignment = 256;
inline constexpr auto kSlowBy = std::chrono::milliseconds(3);
/*! \brief What makes objects or looks for algorithms: in no run and no capture. */
inline constexpr unsigned kMakes = kChangesMemory | kNotInCapture;

/*! \brief A live object; null after reporting a wrong or dead one. */
template <typename Object>
std::shared_ptr<Object> FindObject(void* handle, const char* function) {
  std::shared_ptr<Object> object;
  {
    std::lock_guard lock(TheLibraries().mutex);
    const auto found = TheLibraries().objects.find(handle);
    if (found != TheLibraries().objects.end()) {
      object = std::dynamic_pointer_cast<Object>(found->second);
    }
  }
  if (object == nullptr) Broken(std::string(function) + ": an object that does not live", 0);
  return object;
}

/*! \brief Makes an object that lives until it is destroyed. */
template <typename Object>
int MakeObject(void** out, Object object) {
  auto made = std::make_shared<Object>(std::move(object));
  *out = made.get();
  std::lock_guard lock(TheLibraries().mutex);
  TheLibraries().objects[*out] = std::move(made);
  return 0;
}

/*! \brief Ends an object; `invalid` after reporting a wrong or dead one. */
template <typename Object>
int DestroyObject(void* object, const char* function, int invalid) {
  if (FindObject<Object>(object, function) == nullptr) return invalid;
  std::lock_guard lock(TheLibraries().mutex);
  TheLibraries().objects.erase(object);
  return 0;
}

inline bool AreApart(const void* a, size_t a_bytes, const void* b, size_t b_bytes) {
  const auto first = reinterpret_cast<uintptr_t>(a), second = reinterpret_cast<uintptr_t>(b);
  return first + a_bytes <= second || second + b_bytes <= first;
}

/*! \brief A number's first ten bits, as tensor cores take it; in half, what is too large is
 * infinite. */
float RoundedToTenBits(float value, bool is_half);

/*! \brief The code of a fault that was set for the execution of a function; 0: there is none. */
int TakeExecutionFault(const char* function);

/*! \brief Notes that an algorithm's code comes to a device, and whether it may do so now. */
void LoadCode(const Stream& stream, const char* function, uint64_t algorithm);

}  // namespace fake
