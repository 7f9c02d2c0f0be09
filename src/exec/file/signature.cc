#include "exec/file/signature.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>

#include "support/error.h"

namespace heteroplace::exec {

namespace {

/*! \brief Before what is signed, so that no signature of another kind of text is taken for one. */
constexpr std::string_view kContext = "heteroplace compiled file, signature 1\n";
constexpr size_t kKeyBytes = 32;
constexpr uint64_t kMaxKeyFileBytes = uint64_t{1} << 16;
/*! \brief OpenSSL's number of the kind of key (NID_ED25519). */
constexpr int kEd25519 = 1087;
constexpr const char* kKeyMend =
    "; make a pair by `openssl genpkey -algorithm ed25519 -out key.pem` and `openssl pkey -in "
    "key.pem -pubout -out key.pub.pem`";

/*! \brief The part of libcrypto's interface that is used; 1 is success. Types as in its headers. */
struct Crypto {
  using PasswordCallback = int (*)(char* password, int size, int is_writing, void* data);

  void* (*BIO_new_mem_buf)(const void* data, int bytes);
  int (*BIO_free)(void* bio);
  void* (*PEM_read_bio_PrivateKey)(void* bio, void** key, PasswordCallback callback, void* data);
  void* (*PEM_read_bio_PUBKEY)(void* bio, void** key, PasswordCallback callback, void* data);
  void (*EVP_PKEY_free)(void* key);
  void* (*EVP_PKEY_new_raw_public_key)(int type, void* engine, const unsigned char* key,
                                       size_t bytes);
  int (*EVP_PKEY_get_raw_public_key)(const void* key, unsigned char* to, size_t* bytes);
  void* (*EVP_MD_CTX_new)();
  void (*EVP_MD_CTX_free)(void* context);
  int (*EVP_DigestSignInit)(void* context, void** key_context, const void* type, void* engine,
                            void* key);
  int (*EVP_DigestSign)(void* context, unsigned char* signature, size_t* signature_bytes,
                        const unsigned char* data, size_t bytes);
  int (*EVP_DigestVerifyInit)(void* context, void** key_context, const void* type, void* engine,
                              void* key);
  int (*EVP_DigestVerify)(void* context, const unsigned char* signature, size_t signature_bytes,
                          const unsigned char* data, size_t bytes);
  void (*ERR_clear_error)();
};

/*! \brief An object of libcrypto; null, or freed with this. */
using Owned = std::unique_ptr<void, void (*)(void*)>;

template <typename Function>
void Find(void* library, const char* name, Function* out) {
  void* symbol = dlsym(library, name);
  if (symbol == nullptr) {
    throw Error(ErrorKind::kExecution, std::string("OpenSSL's libcrypto has no function ") + name +
                                           "; install OpenSSL 1.1.1 or later");
  }
  *out = reinterpret_cast<Function>(symbol);
}

Crypto LoadCrypto(std::span<const char* const> names) {
  void* library = nullptr;
  std::string why;
  for (const char* name : names) {
    // Never closed: others may use it, and it has handlers for the end of the process.
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    why += (why.empty() ? "" : "; ") + std::string(dlerror());
  }
  if (library == nullptr) {
    throw Error(ErrorKind::kExecution,
                "signatures of compiled files need OpenSSL's libcrypto (" + why +
                    "); install it (apt-get install libssl3), or use files without signatures");
  }
  Crypto crypto{};
  const auto find = [library](const char* name, auto* out) { Find(library, name, out); };
  find("BIO_new_mem_buf", &crypto.BIO_new_mem_buf);
  find("BIO_free", &crypto.BIO_free);
  find("PEM_read_bio_PrivateKey", &crypto.PEM_read_bio_PrivateKey);
  find("PEM_read_bio_PUBKEY", &crypto.PEM_read_bio_PUBKEY);
  find("EVP_PKEY_free", &crypto.EVP_PKEY_free);
  find("EVP_PKEY_new_raw_public_key", &crypto.EVP_PKEY_new_raw_public_key);
  find("EVP_PKEY_get_raw_public_key", &crypto.EVP_PKEY_get_raw_public_key);
  find("EVP_MD_CTX_new", &crypto.EVP_MD_CTX_new);
  find("EVP_MD_CTX_free", &crypto.EVP_MD_CTX_free);
  find("EVP_DigestSignInit", &crypto.EVP_DigestSignInit);
  find("EVP_DigestSign", &crypto.EVP_DigestSign);
  find("EVP_DigestVerifyInit", &crypto.EVP_DigestVerifyInit);
  find("EVP_DigestVerify", &crypto.EVP_DigestVerify);
  find("ERR_clear_error", &crypto.ERR_clear_error);
  return crypto;
}

const unsigned char* Bytes(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

/*! \brief Never asks at the terminal, as libcrypto would. */
int NoPassword(char*, int, int, void*) { return -1; }

/*! \brief Reads a key of a file by one of libcrypto's readers; null: there is none. */
Owned ReadKey(const Crypto& crypto, const OpenFile& file, bool is_private) {
  if (file.bytes() > kMaxKeyFileBytes) file.Fail(std::string("is too large for a key") + kKeyMend);
  std::string text = file.ReadText(0, file.bytes());
  const auto read = is_private ? crypto.PEM_read_bio_PrivateKey : crypto.PEM_read_bio_PUBKEY;
  void* bio = crypto.BIO_new_mem_buf(text.data(), static_cast<int>(text.size()));
  Owned key(bio == nullptr ? nullptr : read(bio, nullptr, NoPassword, nullptr),
            crypto.EVP_PKEY_free);
  crypto.BIO_free(bio);
  explicit_bzero(text.data(), text.size());
  return key;
}

/*! \brief The 32 bytes of an Ed25519 key's public half; "" for a key of another kind. */
std::string PublicBytes(const Crypto& crypto, void* key) {
  std::string bytes(kKeyBytes, '\0');
  size_t count = bytes.size();
  // Keys of other kinds may have as many bytes, and then cannot verify.
  const Owned context(crypto.EVP_MD_CTX_new(), crypto.EVP_MD_CTX_free);
  const bool is_right =
      context != nullptr &&
      crypto.EVP_PKEY_get_raw_public_key(key, reinterpret_cast<unsigned char*>(bytes.data()),
                                         &count) == 1 &&
      count == kKeyBytes &&
      crypto.EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, key) == 1;
  return is_right ? bytes : "";
}

std::string Signed(std::string_view tail) { return std::string(kContext) + std::string(tail); }

std::string HexOfKey(std::string_view key) {
  std::string text;
  for (const char byte : key) {
    text += "0123456789abcdef"[static_cast<uint8_t>(byte) >> 4];
    text += "0123456789abcdef"[static_cast<uint8_t>(byte) & 15];
  }
  return text;
}

/*! \brief The public key in a file. */
std::string TrustedKey(const Crypto& crypto, const std::string& path) {
  const OpenFile file(path);
  const Owned key = ReadKey(crypto, file, false);
  const std::string bytes = key == nullptr ? "" : PublicBytes(crypto, key.get());
  crypto.ERR_clear_error();
  if (bytes.empty()) file.Fail(std::string("has no public Ed25519 key (PEM)") + kKeyMend);
  return bytes;
}

/*!
 * \brief Whether a key is a point of small order, in any of its encodings: no private key belongs
 * to it, and a signature of zeros may be right by it for one content in four (RFC 8032, 5.1.7,
 * which leaves such keys to the caller).
 */
bool IsWeak(std::string_view key) {
  constexpr std::string_view kWeak[] = {
      // y = 0, 1 and -1, and the two of order 8; then 0 and 1 as p and p + 1.
      "0000000000000000000000000000000000000000000000000000000000000000",
      "0100000000000000000000000000000000000000000000000000000000000000",
      "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
      "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
      "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
      "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
      "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
  };
  std::string point(key);
  point.back() &= 0x7f;  // the sign of x
  const std::string text = HexOfKey(point);
  return std::ranges::find(kWeak, text) != std::end(kWeak);
}

void CheckBy(const Crypto& crypto, const OpenFile& file, const std::string& signature,
             std::string_view tail) {
  const std::string text = Signed(tail);
  const Owned key(
      crypto.EVP_PKEY_new_raw_public_key(kEd25519, nullptr, Bytes(signature), kKeyBytes),
      crypto.EVP_PKEY_free);
  const Owned context(crypto.EVP_MD_CTX_new(), crypto.EVP_MD_CTX_free);
  const bool is_right =
      !IsWeak(std::string_view(signature).substr(0, kKeyBytes)) && key != nullptr &&
      context != nullptr &&
      crypto.EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, key.get()) == 1 &&
      crypto.EVP_DigestVerify(context.get(), Bytes(signature) + kKeyBytes,
                              kSignatureBytes - kKeyBytes, Bytes(text), text.size()) == 1;
  crypto.ERR_clear_error();
  if (is_right) return;
  file.Fail(
      "its signature by key " + SignerOf(signature) +
      " is not of this content; the file or the signature was changed, copy or sign it again");
}

}  // namespace

std::string SignTail(const std::string& key_path, std::string_view tail,
                     std::span<const char* const> crypto_names) {
  const Crypto crypto = LoadCrypto(crypto_names);
  const OpenFile file(key_path);
  const Owned key = ReadKey(crypto, file, true);
  std::string signature = key == nullptr ? "" : PublicBytes(crypto, key.get());
  if (signature.empty()) {
    crypto.ERR_clear_error();
    file.Fail(std::string("has no private Ed25519 key (PEM, without a password)") + kKeyMend);
  }
  const std::string text = Signed(tail);
  const Owned context(crypto.EVP_MD_CTX_new(), crypto.EVP_MD_CTX_free);
  size_t count = kSignatureBytes - kKeyBytes;
  signature.resize(kSignatureBytes);
  auto* to = reinterpret_cast<unsigned char*>(signature.data()) + kKeyBytes;
  const bool is_signed =
      context != nullptr &&
      crypto.EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, key.get()) == 1 &&
      crypto.EVP_DigestSign(context.get(), to, &count, Bytes(text), text.size()) == 1;
  crypto.ERR_clear_error();
  if (!is_signed) file.Fail(std::string("its key cannot sign") + kKeyMend);
  return signature;
}

void CheckSignature(const OpenFile& file, const std::string& signature, std::string_view tail) {
  CheckBy(LoadCrypto(kCryptoNames), file, signature, tail);
}

void CheckTrust(const OpenFile& file, const std::string& signature, std::string_view tail,
                const std::vector<std::string>& trusted_keys) {
  const Crypto crypto = LoadCrypto(kCryptoNames);
  std::string names;
  bool is_trusted = false;
  for (const std::string& path : trusted_keys) {
    is_trusted = TrustedKey(crypto, path) == signature.substr(0, kKeyBytes) || is_trusted;
    names += (names.empty() ? "" : ", ") + path;
  }
  if (names.empty()) names = "none is given";
  if (signature.empty()) {
    file.Fail("is not signed, and only files that a trusted key signed are taken (" + names +
              "); sign it when it is exported (sign_with), or load it without trusted_keys");
  }
  if (!is_trusted) {
    file.Fail("is signed by key " + SignerOf(signature) + ", which is none of the trusted keys (" +
              names + "); get the file from somebody you trust, or add the key if you trust it");
  }
  CheckBy(crypto, file, signature, tail);
}

std::string SignerOf(const std::string& signature) {
  return HexOfKey(std::string_view(signature).substr(0, kKeyBytes));
}

}  // namespace heteroplace::exec
