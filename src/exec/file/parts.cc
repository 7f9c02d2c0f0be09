#include "exec/file/parts.h"

#include <algorithm>
#include <cstring>

namespace heteroplace::exec {

namespace {

constexpr char kMagic[12] = {'H', 'E', 'T', 'E', 'R', 'O', 'P', 'L', 'A', 'C', 'E', '\0'};
constexpr uint64_t kTailBytes = 64;
constexpr uint64_t kRowBytes = 56;
constexpr uint64_t kTableBytes = kNumParts * kRowBytes;
/*! \brief Of a part that is read into memory: a sparse file may say anything. */
constexpr uint64_t kMaxPartBytes = uint64_t{1} << 30;
constexpr const char* kPartNames[kNumParts] = {
    "code", "weights", "digests of the weights", "needs", "program", "manifest", "source"};

template <typename Integer>
Integer Number(const char* at) {
  Integer value = 0;
  for (size_t i = 0; i < sizeof(Integer); ++i) {
    value |= static_cast<Integer>(Integer{static_cast<uint8_t>(at[i])} << (8 * i));
  }
  return value;
}

Digest DigestAt(const char* at) {
  Digest digest;
  std::memcpy(digest.data(), at, digest.size());
  return digest;
}

/*! \brief The last bytes, after the checks of all but the table's digest. */
std::string ReadTail(const OpenFile& file) {
  char magic[4] = {};
  file.Read(0, magic, std::min<uint64_t>(sizeof(magic), file.bytes()));
  if (std::memcmp(magic,
                  "\x7f"
                  "ELF",
                  sizeof(magic)) != 0) {
    file.Fail("not a shared library (it does not start with ELF's magic)");
  }
  std::string tail;
  if (file.bytes() >= kTailBytes) tail = file.ReadText(file.bytes() - kTailBytes, kTailBytes);
  if (tail.compare(0, sizeof(kMagic), kMagic, sizeof(kMagic)) != 0) {
    file.Fail(
        "no heteroplace footer at its end: the file is truncated, or it is a library of another "
        "program; compile or copy it again");
  }
  const uint32_t format = Number<uint32_t>(tail.data() + 12);
  if (format != kFileFormat) {
    file.Fail("format " + std::to_string(format) + ", this heteroplace reads " +
              std::to_string(kFileFormat) + "; compile the model again with this version");
  }
  const uint64_t expected = Number<uint64_t>(tail.data() + 24);
  if (file.bytes() != expected) {
    file.Fail(std::to_string(file.bytes()) + " bytes, its footer says " + std::to_string(expected) +
              "; copy it again");
  }
  const uint64_t end_bytes = Number<uint64_t>(tail.data() + 16);
  if ((end_bytes != kTableBytes && end_bytes != kTableBytes + kSignatureBytes) ||
      file.bytes() < end_bytes + kTailBytes) {
    file.Fail("its table of parts has " + std::to_string(end_bytes) + " bytes, expected " +
              std::to_string(kTableBytes) + ", or " + std::to_string(kSignatureBytes) +
              " more with a signature; copy or compile it again");
  }
  return tail;
}

[[noreturn]] void FailPlace(const OpenFile& file, size_t part, const std::string& what) {
  file.Fail(std::string("its table of parts is wrong: the ") + kPartNames[part] + " " + what);
}

void CheckPlaces(const OpenFile& file, const FileParts& parts, uint64_t last_end) {
  uint64_t end = 0;
  for (size_t i = 0; i < kNumParts; ++i) {
    const uint64_t page_end = (end + kFilePageBytes - 1) / kFilePageBytes * kFilePageBytes;
    const uint64_t begin = i == kWeights ? page_end : end;
    if (parts[i].offset != begin) {
      FailPlace(file, i,
                "begin at byte " + std::to_string(parts[i].offset) + ", expected " +
                    std::to_string(begin));
    }
    if (begin > last_end || parts[i].bytes > last_end - begin) {
      FailPlace(file, i,
                "have " + std::to_string(parts[i].bytes) + " bytes from byte " +
                    std::to_string(begin) + ", the table is at " + std::to_string(last_end));
    }
    if (i != kWeights && parts[i].bytes > kMaxPartBytes) {
      FailPlace(file, i,
                "have " + std::to_string(parts[i].bytes) + " bytes, expected at most " +
                    std::to_string(kMaxPartBytes));
    }
    end = begin + parts[i].bytes;
  }
  if (end != last_end) {
    FailPlace(file, kSource,
              "ends at byte " + std::to_string(end) + ", expected " + std::to_string(last_end));
  }
  const uint64_t num_chunks = (parts[kWeights].bytes + kWeightChunkBytes - 1) / kWeightChunkBytes;
  if (parts[kChunkDigests].bytes != num_chunks * sizeof(Digest)) {
    FailPlace(file, kChunkDigests,
              "have " + std::to_string(parts[kChunkDigests].bytes) + " bytes, expected " +
                  std::to_string(num_chunks * sizeof(Digest)));
  }
  if (parts[kWeights].digest != parts[kChunkDigests].digest) {
    FailPlace(file, kWeights, "have another digest than the list of their digests");
  }
  const uint64_t code_end = parts[kCode].bytes;
  const std::string padding = file.ReadText(code_end, parts[kWeights].offset - code_end);
  if (padding.find_first_not_of('\0') != std::string::npos) {
    file.Fail("the bytes between code and weights are not zero; the file was changed or damaged");
  }
}

}  // namespace

FileEnd ReadEnd(const OpenFile& file) {
  FileEnd end;
  end.tail = ReadTail(file);
  const uint64_t end_bytes = Number<uint64_t>(end.tail.data() + 16);
  const uint64_t table_begin = file.bytes() - kTailBytes - end_bytes;
  const std::string table = file.ReadText(table_begin, kTableBytes);
  if (Sha256Of(table.data(), table.size()) != DigestAt(end.tail.data() + 32)) {
    file.Fail(
        "the SHA-256 of its table of parts differs from the footer's; the file was changed or "
        "damaged, copy or compile it again");
  }
  end.signature = file.ReadText(table_begin + kTableBytes, end_bytes - kTableBytes);
  for (size_t i = 0; i < kNumParts; ++i) {
    const char* row = table.data() + i * kRowBytes;
    if (Number<uint64_t>(row) != i + 1) {
      FailPlace(file, i,
                "are expected as kind " + std::to_string(i + 1) + ", got kind " +
                    std::to_string(Number<uint64_t>(row)));
    }
    end.parts[i] = {Number<uint64_t>(row + 8), Number<uint64_t>(row + 16), DigestAt(row + 24)};
  }
  CheckPlaces(file, end.parts, table_begin);
  return end;
}

std::string ReadPart(const OpenFile& file, const FileParts& parts, Part part) {
  std::string bytes = file.ReadText(parts[part].offset, parts[part].bytes);
  if (Sha256Of(bytes.data(), bytes.size()) != parts[part].digest) {
    file.Fail(std::string("the SHA-256 of its ") + kPartNames[part] +
              " differs from the table's; the file was changed or damaged, copy or compile it "
              "again");
  }
  return bytes;
}

}  // namespace heteroplace::exec
