#include "exec/file/module_blob.h"

#include <cstdint>
#include <cstring>
#include <vector>

namespace heteroplace::exec {

namespace {

/*! \brief Reads as TVM's streams do, but within bounds. Throws the fault as a text. */
class BlobReader {
 public:
  explicit BlobReader(std::string_view bytes) : bytes_(bytes) {}

  void Check() {
    const uint64_t num_entries = Count(1);
    for (uint64_t i = 0; i < num_entries; ++i) {
      const std::string_view kind = String();
      if (kind == "_lib") {
        ++num_modules_;
      } else if (kind == "_import_tree") {
        if (!rows_.empty()) throw std::string("it has two trees of modules");
        rows_ = Numbers();
        children_ = Numbers();
        if (rows_.empty()) throw std::string("its tree of modules is empty");
      } else if (kind == "cuda") {
        ++num_modules_;
        SkipCuda();
      } else {
        throw "a module is of kind '" + std::string(kind) + "', expected _lib or cuda";
      }
    }
    if (!bytes_.empty()) throw std::to_string(bytes_.size()) + " bytes follow the last module";
    if (num_modules_ == 0) throw std::string("it has no module");
    CheckTree();
  }

 private:
  /*! \brief Children come after their parents, so that no module owns itself. */
  void CheckTree() const {
    if (rows_.empty()) return;
    if (rows_.size() != num_modules_ + 1 || rows_.front() != 0 ||
        rows_.back() != children_.size()) {
      throw "its tree has " + std::to_string(rows_.size()) + " rows for " +
          std::to_string(num_modules_) + " modules";
    }
    for (size_t parent = 0; parent < num_modules_; ++parent) {
      if (rows_[parent] > rows_[parent + 1]) throw std::string("its tree has rows out of order");
      for (uint64_t i = rows_[parent]; i < rows_[parent + 1]; ++i) {
        if (i >= children_.size() || children_[i] <= parent || children_[i] >= num_modules_) {
          throw "module " + std::to_string(parent) + " of its tree has a child that is none";
        }
      }
    }
  }

  /*! \brief Format, functions (name, types, names of launch parameters) and code. */
  void SkipCuda() {
    String();
    const uint64_t num_functions = Count(1);
    for (uint64_t i = 0; i < num_functions; ++i) {
      String();  // key
      String();
      constexpr uint64_t kTypeBytes = 4;
      Take(Count(kTypeBytes) * kTypeBytes);
      const uint64_t num_tags = Count(1);
      for (uint64_t tag = 0; tag < num_tags; ++tag) String();
    }
    String();
  }

  /*! \brief A count of elements of at least so many bytes each. */
  uint64_t Count(uint64_t element_bytes) {
    const uint64_t count = Number();
    if (count > bytes_.size() / element_bytes) {
      throw "a count is " + std::to_string(count) + ", and " + std::to_string(bytes_.size()) +
          " bytes are left";
    }
    return count;
  }

  std::string_view String() { return Take(Count(1)); }

  std::vector<uint64_t> Numbers() {
    std::vector<uint64_t> numbers(Count(sizeof(uint64_t)));
    for (uint64_t& number : numbers) number = Number();
    return numbers;
  }

  uint64_t Number() {
    uint64_t number = 0;
    std::memcpy(&number, Take(sizeof(number)).data(), sizeof(number));
    return number;
  }

  std::string_view Take(uint64_t count) {
    if (count > bytes_.size()) {
      throw "it has " + std::to_string(bytes_.size()) + " bytes where " + std::to_string(count) +
          " are expected";
    }
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }

  std::string_view bytes_;
  uint64_t num_modules_ = 0;
  std::vector<uint64_t> rows_, children_;
};

}  // namespace

std::string FaultOfModuleBlob(std::string_view blob) {
  try {
    BlobReader(blob).Check();
  } catch (const std::string& fault) {
    return "the list of its modules: " + fault;
  }
  return "";
}

}  // namespace heteroplace::exec
