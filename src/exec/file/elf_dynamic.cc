// The dynamic section of an image, its hash table and its versions.
#include <algorithm>

#include "exec/file/elf_image.h"

namespace heteroplace::exec {

namespace {

/*! \brief Libraries that kernels may call: those of the C compiler's own functions. */
constexpr std::string_view kKnownLibraries[] = {"libm.so.6", "libc.so.6", "libgcc_s.so.1",
                                                "libmvec.so.1", "ld-linux-x86-64.so.2"};

/*! \brief Tags that an image may have, each once (but DT_NEEDED). */
constexpr uint64_t kDynamicTags[] = {DT_NEEDED, DT_PLTRELSZ,  DT_PLTGOT,  DT_STRTAB,    DT_SYMTAB,
                                     DT_RELA,   DT_RELASZ,    DT_RELAENT, DT_STRSZ,     DT_SYMENT,
                                     DT_PLTREL, DT_JMPREL,    DT_FLAGS,   DT_FLAGS_1,   DT_GNU_HASH,
                                     DT_VERSYM, DT_RELACOUNT, DT_VERNEED, DT_VERNEEDNUM};
constexpr size_t kNumDynamicTags = std::size(kDynamicTags);

size_t PositionOf(uint64_t tag) {
  return static_cast<size_t>(std::find(kDynamicTags, kDynamicTags + kNumDynamicTags, tag) -
                             kDynamicTags);
}

/*! \brief Those whose values are addresses that are read. */
constexpr uint64_t kTables[] = {DT_STRTAB, DT_SYMTAB,   DT_RELA,   DT_JMPREL,
                                DT_VERSYM, DT_GNU_HASH, DT_VERNEED};

/*! \brief Four numbers of 32 bits. */
constexpr uint64_t kHashHeaderBytes = 16;

/*! \brief The hash that loaders look symbols up by. */
uint32_t HashOf(std::string_view name) {
  uint32_t hash = 5381;
  for (char letter : name) hash = 33 * hash + static_cast<uint8_t>(letter);
  return hash;
}

/*! \brief Of a chain of needed versions; a C library has some dozens in all. */
constexpr int kMaxVersions = 1000;

}  // namespace

void ElfImage::CheckDynamic() {
  const ElfSegment* segment = SegmentOf(dynamic_.begin, dynamic_.bytes);
  if (segment == nullptr || !segment->is_writable || dynamic_.begin % 8 != 0) {
    Fail("the dynamic section is in no segment that the loader can write to");
  }
  std::vector<uint64_t> values(2 * kNumDynamicTags);  // value of each tag; then whether it is there
  std::vector<uint64_t> needed;
  bool has_ended = false;
  for (uint64_t at = 0; !has_ended; at += sizeof(Elf64_Dyn)) {
    if (dynamic_.bytes < sizeof(Elf64_Dyn) || at > dynamic_.bytes - sizeof(Elf64_Dyn)) {
      Fail("the dynamic section has no end");
    }
    const auto entry = MemoryRecord<Elf64_Dyn>(dynamic_.begin + at, "the dynamic section");
    has_ended = entry.d_tag == DT_NULL;
    if (entry.d_tag == DT_NEEDED) needed.push_back(entry.d_un.d_val);
    if (!has_ended) TakeEntry(entry, &values);
  }
  for (uint64_t at = 0; at + 8 <= dynamic_.bytes; at += 8) {
    ClaimWord(dynamic_.begin + at, "the dynamic section");
  }
  const auto value = [&](uint64_t tag) { return values[PositionOf(tag)]; };
  const auto expect = [&](uint64_t tag, uint64_t expected, const char* what) {
    if (values[kNumDynamicTags + PositionOf(tag)] != 0 && value(tag) != expected) {
      Fail(std::string(what) + " is " + std::to_string(value(tag)) + ", expected " +
           std::to_string(expected));
    }
  };
  expect(DT_SYMENT, sizeof(Elf64_Sym), "DT_SYMENT");
  expect(DT_RELAENT, sizeof(Elf64_Rela), "DT_RELAENT");
  expect(DT_PLTREL, DT_RELA, "DT_PLTREL");
  expect(DT_FLAGS, DF_BIND_NOW, "DT_FLAGS");
  expect(DT_FLAGS_1, DF_1_NOW, "DT_FLAGS_1");
  for (uint64_t tag : {uint64_t{DT_STRTAB}, uint64_t{DT_STRSZ}, uint64_t{DT_SYMTAB},
                       uint64_t{DT_SYMENT}, uint64_t{DT_GNU_HASH}}) {
    if (values[kNumDynamicTags + PositionOf(tag)] == 0) {
      Fail("the dynamic section has no entry " + std::to_string(tag));
    }
  }
  dynamic_.strings = MemoryBytes(value(DT_STRTAB), value(DT_STRSZ), "the string table");
  if (dynamic_.strings.empty() || dynamic_.strings.back() != '\0') {
    Fail("the string table does not end with a zero byte");
  }
  dynamic_.symbols = value(DT_SYMTAB);
  dynamic_.hash = value(DT_GNU_HASH);
  dynamic_.versions = value(DT_VERSYM);
  dynamic_.needed_versions = value(DT_VERNEED);
  dynamic_.relocations = value(DT_RELA);
  dynamic_.relocation_bytes = value(DT_RELASZ);
  dynamic_.num_relative = value(DT_RELACOUNT);
  dynamic_.calls = value(DT_JMPREL);
  dynamic_.call_bytes = value(DT_PLTRELSZ);
  const auto is_there = [&](uint64_t tag) {
    return values[kNumDynamicTags + PositionOf(tag)] != 0;
  };
  if (is_there(DT_RELA) != is_there(DT_RELASZ) || is_there(DT_RELA) != is_there(DT_RELAENT) ||
      is_there(DT_JMPREL) != is_there(DT_PLTRELSZ) || is_there(DT_JMPREL) != is_there(DT_PLTREL) ||
      is_there(DT_VERSYM) != is_there(DT_VERNEED)) {
    Fail("the dynamic section has a table without its size, or a size without its table");
  }
  for (uint64_t offset : needed) {
    const std::string_view name = Text(offset, "a needed library");
    if (std::find(std::begin(kKnownLibraries), std::end(kKnownLibraries), name) ==
        std::end(kKnownLibraries)) {
      Fail("it needs the library '" + std::string(name) + "', which kernels do not");
    }
    dynamic_.needed.push_back(name);
  }
}

void ElfImage::TakeEntry(const Elf64_Dyn& entry, std::vector<uint64_t>* values) {
  const uint64_t tag = static_cast<uint64_t>(entry.d_tag);
  const size_t position = PositionOf(tag);
  if (position == kNumDynamicTags) {
    Fail("the dynamic section has entry " + std::to_string(tag) +
         "; a library of kernels has no constructors, no search paths and no text relocations");
  }
  if (tag != DT_NEEDED && (*values)[kNumDynamicTags + position] != 0) {
    Fail("the dynamic section has entry " + std::to_string(tag) + " twice");
  }
  // Loaders take an entry to be there whatever its value; here 0 stands for none.
  const bool is_table = std::find(std::begin(kTables), std::end(kTables), tag) != std::end(kTables);
  if (is_table && entry.d_un.d_val == 0) {
    Fail("the dynamic section has entry " + std::to_string(tag) + " for address 0");
  }
  (*values)[position] = entry.d_un.d_val;
  (*values)[kNumDynamicTags + position] = 1;
}

void ElfImage::CheckHash() {
  struct Header {
    uint32_t num_buckets, first_symbol, num_words, shift;
  };
  const auto header = MemoryRecord<Header>(dynamic_.hash, "the hash table");
  const bool is_power = header.num_words != 0 && (header.num_words & (header.num_words - 1)) == 0;
  if (header.num_buckets == 0 || !is_power || header.shift >= 32 || dynamic_.hash % 8 != 0) {
    Fail("the hash table has " + std::to_string(header.num_buckets) + " buckets, " +
         std::to_string(header.num_words) + " words and shift " + std::to_string(header.shift));
  }
  const uint64_t words = dynamic_.hash + sizeof(Header);
  MemoryBytes(words, uint64_t{8} * header.num_words, "the filter of the hash table");
  const uint64_t buckets = words + uint64_t{8} * header.num_words;
  const uint64_t chains = buckets + uint64_t{4} * header.num_buckets;
  num_symbols_ = header.first_symbol;
  for (uint64_t bucket = 0; bucket < header.num_buckets; ++bucket) {
    const auto first = MemoryRecord<uint32_t>(buckets + 4 * bucket, "a bucket of the hash table");
    if (first == 0) continue;
    if (first < header.first_symbol) Fail("a bucket of the hash table begins before the first one");
    uint64_t symbol = first;
    // A chain that was walked is not walked again: buckets may share an end.
    if (symbol < num_symbols_) continue;
    while ((MemoryRecord<uint32_t>(chains + 4 * (symbol - header.first_symbol),
                                   "a chain of the hash table") &
            1) == 0) {
      ++symbol;
    }
    num_symbols_ = symbol + 1;
  }
  MemoryBytes(dynamic_.symbols, num_symbols_ * sizeof(Elf64_Sym), "the symbol table");
  CheckFound(header.first_symbol, header.num_buckets, header.num_words, header.shift);
}

void ElfImage::CheckFound(uint64_t first_symbol, uint64_t num_buckets, uint64_t num_words,
                          uint32_t shift) {
  const uint64_t words = dynamic_.hash + kHashHeaderBytes;
  const uint64_t buckets = words + 8 * num_words;
  const uint64_t chains = buckets + 4 * num_buckets;
  uint64_t bucket_before = num_buckets;
  for (uint64_t symbol = first_symbol; symbol < num_symbols_; ++symbol) {
    const auto record =
        MemoryRecord<Elf64_Sym>(dynamic_.symbols + symbol * sizeof(Elf64_Sym), "a symbol");
    const uint32_t hash = HashOf(Text(record.st_name, "the name of a symbol"));
    const auto kept = MemoryRecord<uint32_t>(chains + 4 * (symbol - first_symbol), "a hash");
    const auto filter = MemoryRecord<uint64_t>(words + 8 * (hash / 64 % num_words), "a filter");
    const uint64_t bits = uint64_t{1} << (hash % 64) | uint64_t{1} << ((hash >> shift) % 64);
    const uint64_t bucket = hash % num_buckets;
    const auto first = MemoryRecord<uint32_t>(buckets + 4 * bucket, "a bucket");
    const bool begins = first == symbol;
    const bool follows = bucket == bucket_before && !begins;
    const bool ends = symbol + 1 == num_symbols_ || (kept & 1) != 0;
    if ((kept | 1) != (hash | 1) || (filter & bits) != bits || !(begins || follows) ||
        (ends && (kept & 1) == 0)) {
      Fail("the hash table does not lead to symbol " + std::to_string(symbol));
    }
    bucket_before = (kept & 1) != 0 ? num_buckets : bucket;
  }
}

uint16_t ElfImage::CheckNeededVersions() {
  uint16_t highest = 1;
  uint64_t at = dynamic_.needed_versions;
  int num_versions = 0;
  for (bool has_next = true; has_next;) {
    const auto need = MemoryRecord<Elf64_Verneed>(at, "the table of needed versions");
    const std::string_view file = Text(need.vn_file, "a file of needed versions");
    if (std::find(dynamic_.needed.begin(), dynamic_.needed.end(), file) == dynamic_.needed.end()) {
      Fail("it needs versions of '" + std::string(file) + "', which it does not load");
    }
    uint64_t next = at + need.vn_aux;
    for (bool has_version = true; has_version;) {
      const auto version = MemoryRecord<Elf64_Vernaux>(next, "a needed version");
      Text(version.vna_name, "the name of a version");
      const uint16_t number = version.vna_other;
      if (++num_versions > kMaxVersions) Fail("its table of needed versions does not end");
      if (number < 2) Fail("a needed version has the number " + std::to_string(number));
      highest = std::max(highest, number);
      has_version = version.vna_next != 0;
      next += version.vna_next;
    }
    has_next = need.vn_next != 0;
    at += need.vn_next;
  }
  if (highest != 1 + num_versions) {
    Fail("its " + std::to_string(num_versions) + " needed versions go up to the number " +
         std::to_string(highest));
  }
  return highest;
}

void ElfImage::CheckVersions() {
  if (dynamic_.versions == 0) return;
  if (dynamic_.needed_versions == 0) Fail("it has versions of symbols and needs none");
  const uint16_t max_version = CheckNeededVersions();
  for (uint64_t symbol = 0; symbol < num_symbols_; ++symbol) {
    const auto version =
        MemoryRecord<uint16_t>(dynamic_.versions + 2 * symbol, "the version of a symbol");
    const auto record =
        MemoryRecord<Elf64_Sym>(dynamic_.symbols + symbol * sizeof(Elf64_Sym), "a symbol");
    // 0 and 1 are for symbols without a version, as are those that are defined here.
    if (version > (record.st_shndx == SHN_UNDEF ? max_version : 1)) {
      Fail("symbol " + std::to_string(symbol) + " has version " + std::to_string(version) + " of " +
           std::to_string(max_version));
    }
  }
}

}  // namespace heteroplace::exec
