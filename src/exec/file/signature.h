// Who stands for a compiled file: an Ed25519 signature (RFC 8032) of its tail, which hangs on every
// byte of the file through the digests.
//
// Signatures are made and checked by OpenSSL's libcrypto (1.1.1 or later). It is looked for when it
// is needed, as CUDA is: files that nobody signs need none.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "exec/file/open_file.h"

namespace heteroplace::exec {

/*! \brief Public key of 32 bytes, then the signature of 64. */
inline constexpr uint64_t kSignatureBytes = 96;

/*! \brief Names by which loaders know libcrypto, newest first. */
inline constexpr const char* kCryptoNames[] = {"libcrypto.so.3", "libcrypto.so.1.1"};

/*!
 * \brief Signs a tail.
 * \param key_path a file with a private Ed25519 key, PEM (PKCS #8), without a password.
 * \param crypto_names which libcrypto, the first that is there.
 * \return Public key and signature.
 * \throws Error kArtifact: there is no such key in the file; kExecution: no libcrypto.
 */
std::string SignTail(const std::string& key_path, std::string_view tail,
                     std::span<const char* const> crypto_names = kCryptoNames);

/*!
 * \brief Checks that a signature is one of this tail by the key in it; whose that is, it does not
 * say.
 * \throws Error kArtifact: it is not; kExecution: no libcrypto.
 */
void CheckSignature(const OpenFile& file, const std::string& signature, std::string_view tail);

/*!
 * \brief Checks that one of the trusted keys has signed this tail.
 * \param trusted_keys files with a public Ed25519 key each, PEM.
 * \throws Error kArtifact: the file is not signed, or by somebody else; a key cannot be read.
 * \throws Error kExecution: no libcrypto.
 */
void CheckTrust(const OpenFile& file, const std::string& signature, std::string_view tail,
                const std::vector<std::string>& trusted_keys);

/*! \brief The public key of a signature, hexadecimal; "": there is no signature. */
std::string SignerOf(const std::string& signature);

}  // namespace heteroplace::exec
