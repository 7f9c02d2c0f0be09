// Symbols and relocations of an image: what they point to, and that nothing is written twice.
#include <algorithm>

#include "exec/file/elf_image.h"
#include "exec/file/module_blob.h"

namespace heteroplace::exec {

namespace {

constexpr uint64_t kWordBytes = 8;

/*! \brief Words into which TVM writes the addresses of its functions and the module. */
constexpr std::string_view kRuntimePointers[] = {
    "__TVMFuncCall",
    "__TVMAPISetLastError",
    "__TVMBackendGetFuncFromEnv",
    "__TVMBackendAllocWorkspace",
    "__TVMBackendFreeWorkspace",
    "__TVMBackendParallelLaunch",
    "__TVMBackendParallelBarrier",
    "__tvm_module_ctx",
};

bool IsRuntimePointer(std::string_view name) {
  return std::find(std::begin(kRuntimePointers), std::end(kRuntimePointers), name) !=
         std::end(kRuntimePointers);
}

}  // namespace

void ElfImage::CheckSymbols() {
  has_address_.resize(num_symbols_);
  has_call_.resize(num_symbols_);
  ReadFunctionBegins();
  for (uint64_t index = 0; index < num_symbols_; ++index) {
    const uint64_t at = dynamic_.symbols + index * sizeof(Elf64_Sym);
    CheckSymbol(index, MemoryRecord<Elf64_Sym>(at, "a symbol"));
  }
}

void ElfImage::CheckSymbol(uint64_t index, const Elf64_Sym& symbol) {
  const std::string_view name = Text(symbol.st_name, "the name of a symbol");
  const std::string which = "symbol " + std::to_string(index) + " '" + std::string(name) + "'";
  const unsigned type = ELF64_ST_TYPE(symbol.st_info);
  const unsigned binding = ELF64_ST_BIND(symbol.st_info);
  if (type > STT_FUNC || (binding != STB_LOCAL && binding != STB_GLOBAL && binding != STB_WEAK)) {
    // An indirect function would be called when it is looked up; a unique symbol stays for ever.
    Fail(which + " has type " + std::to_string(type) + " and binding " + std::to_string(binding));
  }
  if (symbol.st_shndx == SHN_UNDEF) {
    if (symbol.st_value != 0 || symbol.st_other != STV_DEFAULT) {
      Fail(which + " is undefined, and has an address or a visibility");
    }
    return;
  }
  if (symbol.st_shndx >= SHN_LORESERVE || binding == STB_LOCAL || symbol.st_other != STV_DEFAULT) {
    Fail(which + " cannot be found from outside");
  }
  const ElfSegment* segment = SegmentOf(symbol.st_value, symbol.st_size);
  if (segment == nullptr) {
    Fail(which + " has " + std::to_string(symbol.st_size) + " bytes from address " +
         std::to_string(symbol.st_value) + ", which no segment holds");
  }
  if (type == STT_FUNC) {
    if (!segment->is_executable || symbol.st_size == 0 || !IsFunctionBegin(symbol.st_value)) {
      Fail(which + " is no function in code");
    }
    if (binding == STB_GLOBAL) functions_.emplace_back(name);
  } else if (segment->is_executable || type != STT_OBJECT) {
    Fail(which + " is neither a function nor data");
  }
  if (segment->is_writable || IsRuntimePointer(name)) CheckRuntimePointer(which, name, symbol);
  if (name == kModuleBlobSymbol) {
    const auto bytes = MemoryRecord<uint64_t>(symbol.st_value, "the list of modules");
    const std::string fault =
        FaultOfModuleBlob(MemoryBytes(symbol.st_value + kWordBytes, bytes, "the list of modules"));
    if (!fault.empty()) Fail(fault);
  }
}

bool ElfImage::IsFunctionBegin(uint64_t address) const {
  return unwind_ == 0 ||
         std::binary_search(function_begins_.begin(), function_begins_.end(), address);
}

void ElfImage::ReadFunctionBegins() {
  if (unwind_ == 0) return;
  struct Header {
    uint8_t version, frame_encoding, count_encoding, table_encoding;
    int32_t frame;
    uint32_t count;
  };
  struct Row {
    int32_t function, description;
  };
  const auto header = MemoryRecord<Header>(unwind_, "the unwind table");
  // Offsets of 32 bits: from where they stand, a plain count, and from the table.
  if (header.version != 1 || header.frame_encoding != 0x1b || header.count_encoding != 0x03 ||
      header.table_encoding != 0x3b) {
    Fail("the unwind table is not of the form that linkers write");
  }
  const uint64_t rows = unwind_ + sizeof(Header);
  MemoryBytes(rows, uint64_t{header.count} * sizeof(Row), "the unwind table");
  for (uint64_t i = 0; i < header.count; ++i) {
    const auto row = MemoryRecord<Row>(rows + i * sizeof(Row), "the unwind table");
    function_begins_.push_back(unwind_ + static_cast<uint64_t>(int64_t{row.function}));
  }
  if (!std::is_sorted(function_begins_.begin(), function_begins_.end())) {
    Fail("the unwind table is not in order");
  }
}

void ElfImage::CheckRuntimePointer(const std::string& which, std::string_view name,
                                   const Elf64_Sym& symbol) {
  if (!IsRuntimePointer(name) || symbol.st_size != kWordBytes) {
    Fail(which + " is in memory that is written, and none of the words that TVM writes");
  }
  ClaimWord(symbol.st_value, which);
}

void ElfImage::CheckRelocations() {
  const auto check = [this](uint64_t begin, uint64_t bytes, uint64_t num_relative) {
    if (bytes % sizeof(Elf64_Rela) != 0 || num_relative > bytes / sizeof(Elf64_Rela)) {
      Fail("a table of relocations has " + std::to_string(bytes) + " bytes, and " +
           std::to_string(num_relative) + " relative ones");
    }
    if (bytes > 0) MemoryBytes(begin, bytes, "a table of relocations");
    for (uint64_t i = 0; i < bytes / sizeof(Elf64_Rela); ++i) {
      const uint64_t at = begin + i * sizeof(Elf64_Rela);
      CheckRelocation(MemoryRecord<Elf64_Rela>(at, "a relocation"), i < num_relative);
    }
  };
  check(dynamic_.relocations, dynamic_.relocation_bytes, dynamic_.num_relative);
  check(dynamic_.calls, dynamic_.call_bytes, 0);
  CheckAllIsWritten();
}

void ElfImage::CheckAllIsWritten() const {
  for (const ElfSegment& segment : segments_) {
    if (!segment.is_writable) continue;
    uint64_t at = (segment.begin + 7) / 8 * 8;
    for (; at + kWordBytes <= segment.file_end; at += kWordBytes) {
      if (claimed_[at / 8]) continue;
      if (MemoryRecord<uint64_t>(at, "a word") != dynamic_.begin) {
        Fail("address " + std::to_string(at) + " is for the loader to fill, and nothing says how");
      }
      // Two words follow that loaders keep for themselves.
      at += 2 * kWordBytes;
    }
  }
  for (uint64_t index = 1; index < num_symbols_; ++index) {
    const auto symbol =
        MemoryRecord<Elf64_Sym>(dynamic_.symbols + index * sizeof(Elf64_Sym), "a symbol");
    const bool is_pointer = IsRuntimePointer(Text(symbol.st_name, "the name of a symbol"));
    const bool has_call = symbol.st_shndx == SHN_UNDEF && has_call_[index];
    if ((symbol.st_shndx == SHN_UNDEF || is_pointer) && !has_address_[index] && !has_call) {
      Fail("symbol " + std::to_string(index) + " is used by code, and no relocation is for it");
    }
  }
}

void ElfImage::CheckRelocation(const Elf64_Rela& relocation, bool must_be_relative) {
  const uint64_t type = ELF64_R_TYPE(relocation.r_info);
  const uint64_t symbol_index = ELF64_R_SYM(relocation.r_info);
  const std::string which = "the relocation of address " + std::to_string(relocation.r_offset);
  ClaimWord(relocation.r_offset, which);
  const uint64_t addend = static_cast<uint64_t>(relocation.r_addend);
  if (type == R_X86_64_RELATIVE) {
    if (addend == 0 || SegmentOf(addend, 0) == nullptr || symbol_index != 0) {
      Fail(which + " leads to address " + std::to_string(addend) + ", which no segment holds");
    }
    return;
  }
  const bool is_known =
      type == R_X86_64_64 || type == R_X86_64_GLOB_DAT || type == R_X86_64_JUMP_SLOT;
  if (!is_known || must_be_relative) {
    Fail(which + " is of type " + std::to_string(type) + "; kernels need 1, 6, 7 and 8");
  }
  if (symbol_index == 0 || symbol_index >= num_symbols_) {
    Fail(which + " is for symbol " + std::to_string(symbol_index) + " of " +
         std::to_string(num_symbols_));
  }
  std::vector<bool>& has_one = type == R_X86_64_JUMP_SLOT ? has_call_ : has_address_;
  if (type != R_X86_64_64 && has_one[symbol_index]) {
    Fail(which + " is the second of its kind for symbol " + std::to_string(symbol_index));
  }
  has_one[symbol_index] = true;
  const auto symbol = MemoryRecord<Elf64_Sym>(dynamic_.symbols + symbol_index * sizeof(Elf64_Sym),
                                              "the symbol of a relocation");
  const bool is_defined = symbol.st_shndx != SHN_UNDEF;
  if (!is_defined && ELF64_ST_BIND(symbol.st_info) != STB_GLOBAL) {
    Fail(which + " is for a symbol that may be missing; its code would call address 0");
  }
  const bool is_in_segment = SegmentOf(symbol.st_value + addend, 0) != nullptr;
  if (type == R_X86_64_64 ? (is_defined ? !is_in_segment : addend != 0) : addend != 0) {
    Fail(which + " adds " + std::to_string(addend) + " to its symbol");
  }
}

}  // namespace heteroplace::exec
