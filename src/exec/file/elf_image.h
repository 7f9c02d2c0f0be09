// The library of kernels in a compiled file, checked before the system's loader sees it.
//
// The loader (and TVM behind it) follows numbers of the file without a check: a wrong one ends the
// process. Here every number that they follow is checked, and what is not needed to run kernels is
// refused, or taken out of the copy that is loaded: constructors, notes, foreign libraries, symbols
// that run code when they are looked up. What machine code does cannot be checked.
#pragma once

#include <elf.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heteroplace::exec {

/*! \brief Memory that the loader makes of a part of the file. Addresses are from the image's start.
 */
struct ElfSegment {
  uint64_t begin;
  uint64_t end;
  /*! \brief Where bytes of the file end and zeros begin; below or at `end`. */
  uint64_t file_end;
  uint64_t offset;
  bool is_writable;
  bool is_executable;
};

/*! \brief What the dynamic section says; 0 for what it does not have. */
struct ElfDynamic {
  uint64_t begin = 0, bytes = 0;
  std::string_view strings;  // with their last zero byte
  uint64_t symbols = 0, hash = 0, versions = 0, needed_versions = 0;
  uint64_t relocations = 0, relocation_bytes = 0, num_relative = 0;
  uint64_t calls = 0, call_bytes = 0;
  std::vector<std::string_view> needed;
};

/*!
 * \brief Reads an image with bounds. Later checks build on what earlier ones filled in.
 *
 * Names in messages are those of the ELF specification and of readelf.
 */
class ElfImage {
 public:
  /*! \param name of the file, for messages. */
  ElfImage(std::string name, std::string bytes)
      : name_(std::move(name)), bytes_(std::move(bytes)) {}

  /*! \brief Runs all checks, in order. \throws Error kArtifact. */
  void Check();

  const std::string& name() const { return name_; }

  /*! \brief The bytes to load: what the loader does not need is gone. After `Check`. */
  std::string TakeLoadable();

  /*! \brief Names of the functions that may be kernels: global and defined here. After `Check`. */
  const std::vector<std::string>& functions() const { return functions_; }

 private:
  void CheckHeader();
  void CheckSegments();
  void AddSegment(const Elf64_Phdr& header);
  void CheckDynamic();
  void TakeEntry(const Elf64_Dyn& entry, std::vector<uint64_t>* values);
  void CheckHash();
  void CheckVersions();
  uint16_t CheckNeededVersions();
  void CheckSymbols();
  void CheckSymbol(uint64_t index, const Elf64_Sym& symbol);
  void CheckRuntimePointer(const std::string& which, std::string_view name,
                           const Elf64_Sym& symbol);
  /*! \brief Reads where functions begin from the table that unwinds them: symbols are held to it.
   */
  void ReadFunctionBegins();
  bool IsFunctionBegin(uint64_t address) const;
  void CheckRelocations();
  void CheckRelocation(const Elf64_Rela& relocation, bool must_be_relative);
  void CheckAllIsWritten() const;
  void CheckFound(uint64_t first_symbol, uint64_t num_buckets, uint64_t num_words, uint32_t shift);

  /*! \brief A record of the file. */
  template <typename Record>
  Record FileRecord(uint64_t offset, const char* what) const {
    Record record;
    if (offset > bytes_.size() || sizeof(Record) > bytes_.size() - offset) {
      Fail(std::string(what) + " ends behind its " + std::to_string(bytes_.size()) + " bytes");
    }
    std::memcpy(&record, bytes_.data() + offset, sizeof(Record));
    return record;
  }

  /*! \brief A record in memory, of bytes of the file. */
  template <typename Record>
  Record MemoryRecord(uint64_t address, const char* what) const {
    Record record;
    std::memcpy(&record, MemoryBytes(address, sizeof(Record), what).data(), sizeof(Record));
    return record;
  }

  /*! \brief Bytes of the file that the loader puts at an address, all in one segment. */
  std::string_view MemoryBytes(uint64_t address, uint64_t bytes, const char* what) const;

  /*! \brief The segment that holds all of these bytes; null: there is none. */
  const ElfSegment* SegmentOf(uint64_t address, uint64_t bytes) const;

  /*! \brief Claims a word that the loader or TVM writes; nothing else may lie there. */
  void ClaimWord(uint64_t address, const std::string& what);

  /*! \brief A text of the string table. */
  std::string_view Text(uint64_t offset, const char* what) const;

  [[noreturn]] void Fail(const std::string& what) const;

  std::string name_;
  std::string bytes_;
  Elf64_Ehdr header_{};
  std::vector<ElfSegment> segments_;
  ElfDynamic dynamic_;
  uint64_t num_symbols_ = 0;
  std::vector<std::string> functions_;
  /*! \brief Address of the unwind table, 0 for none, and of what it says begins there; sorted. */
  uint64_t unwind_ = 0;
  std::vector<uint64_t> function_begins_;
  /*! \brief Claimed words, by address / 8. */
  std::vector<bool> claimed_;
  /*! \brief Whether a relocation of type 64 or GLOB_DAT, or a JUMP_SLOT, is for a symbol. */
  std::vector<bool> has_address_, has_call_;  // [num_symbols]
};

}  // namespace heteroplace::exec
