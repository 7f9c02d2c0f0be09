// Headers and segments of an image, and the copy of it that is loaded.
#include "exec/file/elf_image.h"

#include "support/error.h"

namespace heteroplace::exec {

namespace {

constexpr uint64_t kLoaderPageBytes = 4096;
constexpr int kMaxProgramHeaders = 32;
/*! \brief Kernels keep no data: their library needs a few words that no byte of the file fills. */
constexpr uint64_t kMaxZeroBytes = uint64_t{16} << 20;
/*! \brief Linkers align segments to the largest page that a system may have. */
constexpr uint64_t kMaxAlignment = uint64_t{2} << 20;
#if defined(__x86_64__)
constexpr uint16_t kMachine = EM_X86_64;
#else
constexpr uint16_t kMachine = EM_NONE;
#endif

/*! \brief Names of sections in the copy: of none but itself. */
constexpr char kSectionNames[] = "\0.shstrtab";

}  // namespace

void ElfImage::Fail(const std::string& what) const {
  throw Error(ErrorKind::kArtifact, name_ + ": its library of kernels is damaged: " + what +
                                        "; copy or compile it again");
}

void ElfImage::Check() {
  CheckHeader();
  CheckSegments();
  CheckDynamic();
  CheckHash();
  CheckVersions();
  CheckSymbols();
  CheckRelocations();
}

void ElfImage::CheckHeader() {
  header_ = FileRecord<Elf64_Ehdr>(0, "the ELF header");
  if (std::memcmp(header_.e_ident, ELFMAG, SELFMAG) != 0)
    Fail("it does not start with ELF's magic");
  if (header_.e_ident[EI_CLASS] != ELFCLASS64 || header_.e_ident[EI_DATA] != ELFDATA2LSB ||
      header_.e_ident[EI_VERSION] != EV_CURRENT || header_.e_version != EV_CURRENT) {
    Fail("the ELF header is not that of a 64-bit little-endian file of version 1");
  }
  if (header_.e_ident[EI_OSABI] != ELFOSABI_SYSV || header_.e_ident[EI_ABIVERSION] != 0) {
    Fail("it is of ABI " + std::to_string(header_.e_ident[EI_OSABI]) + ", expected 0 (System V)");
  }
  if (header_.e_type != ET_DYN) {
    Fail("it is of type " + std::to_string(header_.e_type) + ", expected 3 (shared library)");
  }
  if (header_.e_machine != kMachine) {
    Fail("it is for machine " + std::to_string(header_.e_machine) + ", this one is " +
         std::to_string(kMachine));
  }
  if (header_.e_phentsize != sizeof(Elf64_Phdr) || header_.e_phnum == 0 ||
      header_.e_phnum > kMaxProgramHeaders || header_.e_phoff % 8 != 0) {
    Fail("the ELF header has " + std::to_string(header_.e_phnum) + " program headers of " +
         std::to_string(header_.e_phentsize) + " bytes at " + std::to_string(header_.e_phoff));
  }
}

void ElfImage::CheckSegments() {
  bool has_stack = false;
  for (uint16_t i = 0; i < header_.e_phnum; ++i) {
    const uint64_t at = header_.e_phoff + i * sizeof(Elf64_Phdr);
    auto header = FileRecord<Elf64_Phdr>(at, "a program header");
    if (header.p_type == PT_LOAD) {
      AddSegment(header);
    } else if (header.p_type == PT_DYNAMIC) {
      if (dynamic_.bytes != 0) Fail("it has two dynamic sections");
      if (header.p_filesz == 0) Fail("its dynamic section is empty");
      dynamic_.begin = header.p_vaddr;
      dynamic_.bytes = header.p_filesz;
    } else if (header.p_type == PT_GNU_STACK) {
      if ((header.p_flags & PF_X) != 0) Fail("it asks for a stack that can be executed");
      has_stack = true;
    } else if (header.p_type == PT_TLS || header.p_type == PT_INTERP) {
      Fail("a program header is of type " + std::to_string(header.p_type) +
           "; a library of kernels has no thread-local memory and no interpreter");
    } else {
      if (header.p_type == PT_GNU_EH_FRAME) unwind_ = header.p_vaddr;
      // Notes, unwind tables, ...: the loader would follow what nothing here needs.
      header.p_type = PT_NULL;
      std::memcpy(bytes_.data() + at, &header, sizeof(header));
    }
  }
  if (segments_.empty() || dynamic_.bytes == 0) Fail("it has no segment, or no dynamic section");
  if (!has_stack) Fail("it does not say whether its stack can be executed");
  const ElfSegment& first = segments_.front();
  if (first.offset != 0 || first.begin != 0 ||
      first.file_end < header_.e_phoff + header_.e_phnum * sizeof(Elf64_Phdr)) {
    Fail("its first segment does not begin with the headers");
  }
  claimed_.resize(segments_.back().end / 8 + 1);
}

void ElfImage::AddSegment(const Elf64_Phdr& header) {
  const std::string which = "segment " + std::to_string(segments_.size());
  if (header.p_filesz > header.p_memsz || header.p_offset > bytes_.size() ||
      header.p_filesz > bytes_.size() - header.p_offset) {
    Fail(which + " has " + std::to_string(header.p_filesz) + " bytes from byte " +
         std::to_string(header.p_offset) + " of a file of " + std::to_string(bytes_.size()) +
         ", and " + std::to_string(header.p_memsz) + " in memory");
  }
  const bool is_writable = (header.p_flags & PF_W) != 0;
  const bool is_executable = (header.p_flags & PF_X) != 0;
  if ((header.p_flags & PF_R) == 0 || (is_writable && is_executable)) {
    Fail(which + " has flags " + std::to_string(header.p_flags) +
         "; memory is readable, and never both written and executed");
  }
  const uint64_t zero_bytes = header.p_memsz - header.p_filesz;
  if (zero_bytes > (is_writable ? kMaxZeroBytes : 0)) {
    Fail(which + " has " + std::to_string(zero_bytes) + " bytes that the file does not fill");
  }
  const uint64_t align = header.p_align;
  if (align < kLoaderPageBytes || (align & (align - 1)) != 0 || align > kMaxAlignment ||
      header.p_vaddr % align != header.p_offset % align) {
    Fail(which + " is at " + std::to_string(header.p_vaddr) + ", its bytes at " +
         std::to_string(header.p_offset) + ", which alignment " + std::to_string(align) +
         " does not allow");
  }
  // Segments follow each other, on pages of their own, about as in the file.
  const uint64_t before = segments_.empty() ? 0 : segments_.back().end;
  const uint64_t first_page = header.p_vaddr / kLoaderPageBytes * kLoaderPageBytes;
  const uint64_t highest = (before + align - 1) / align * align + 2 * align - 1;
  if (first_page < before || header.p_vaddr > highest) {
    Fail(which + " begins at " + std::to_string(header.p_vaddr) + ", the one before ends at " +
         std::to_string(before));
  }
  // No byte of the file lies between two of them: one that was left out is missed.
  const uint64_t file_end =
      segments_.empty()
          ? 0
          : segments_.back().offset + (segments_.back().file_end - segments_.back().begin);
  if (header.p_offset < file_end || header.p_offset - file_end >= align) {
    Fail(which + " begins at byte " + std::to_string(header.p_offset) +
         ", the one before ends at byte " + std::to_string(file_end));
  }
  segments_.push_back({header.p_vaddr, header.p_vaddr + header.p_memsz,
                       header.p_vaddr + header.p_filesz, header.p_offset, is_writable,
                       is_executable});
}

const ElfSegment* ElfImage::SegmentOf(uint64_t address, uint64_t bytes) const {
  for (const ElfSegment& segment : segments_) {
    if (address >= segment.begin && address <= segment.end && bytes <= segment.end - address) {
      return &segment;
    }
  }
  return nullptr;
}

std::string_view ElfImage::MemoryBytes(uint64_t address, uint64_t bytes, const char* what) const {
  for (const ElfSegment& segment : segments_) {
    if (address >= segment.begin && address <= segment.file_end &&
        bytes <= segment.file_end - address) {
      return std::string_view(bytes_).substr(segment.offset + (address - segment.begin), bytes);
    }
  }
  Fail(std::string(what) + " has " + std::to_string(bytes) + " bytes from address " +
       std::to_string(address) + ", which no segment holds");
}

std::string_view ElfImage::Text(uint64_t offset, const char* what) const {
  if (offset >= dynamic_.strings.size()) {
    Fail(std::string(what) + " is string " + std::to_string(offset) + " of a table of " +
         std::to_string(dynamic_.strings.size()) + " bytes");
  }
  return dynamic_.strings.data() + offset;
}

void ElfImage::ClaimWord(uint64_t address, const std::string& what) {
  const ElfSegment* segment = SegmentOf(address, 8);
  if (segment == nullptr || !segment->is_writable || address % 8 != 0) {
    Fail(what + " is at address " + std::to_string(address) + ", which is no word that is written");
  }
  if (claimed_[address / 8]) {
    Fail(what + " is at address " + std::to_string(address) + ", where something else lies");
  }
  claimed_[address / 8] = true;
}

std::string ElfImage::TakeLoadable() {
  // Debuggers and stack traces read sections: none is left but the one of sections' names.
  Elf64_Shdr sections[2] = {};
  sections[1].sh_name = 1;
  sections[1].sh_type = SHT_STRTAB;
  sections[1].sh_offset = bytes_.size();
  sections[1].sh_size = sizeof(kSectionNames);
  sections[1].sh_addralign = 1;
  bytes_.append(kSectionNames, sizeof(kSectionNames));
  bytes_.resize((bytes_.size() + 7) / 8 * 8);
  header_.e_shoff = bytes_.size();
  header_.e_shentsize = sizeof(Elf64_Shdr);
  header_.e_shnum = 2;
  header_.e_shstrndx = 1;
  header_.e_entry = 0;
  bytes_.append(reinterpret_cast<const char*>(sections), sizeof(sections));
  std::memcpy(bytes_.data(), &header_, sizeof(header_));
  return std::move(bytes_);
}

}  // namespace heteroplace::exec
