// SPDX-License-Identifier: Apache-2.0
#include "src/profile/compress.h"

#include <zstd.h>
#include <zstd_errors.h>

#include <memory>
#include <new>

#include "src/base/check.h"

namespace dlsim {
namespace {

// Higher levels save a hundredth and take many times longer; see docs/profile-format.md.
constexpr int kLevel = 3;

// No block holds more, and each takes at least four bytes.
constexpr uint64_t kBlockBytes = ZSTD_BLOCKSIZE_MAX;
constexpr uint64_t kLeastBlock = 4;

struct FreeContext {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

ZSTD_CCtx* Compressor() {
  thread_local const std::unique_ptr<ZSTD_CCtx, FreeContext> context(ZSTD_createCCtx());
  if (context == nullptr) throw std::bad_alloc();
  ZSTD_CCtx_reset(context.get(), ZSTD_reset_session_and_parameters);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_compressionLevel, kLevel);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_contentSizeFlag, 1);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_checksumFlag, 0);
  return context.get();
}

ZSTD_DCtx* Decompressor() {
  thread_local const std::unique_ptr<ZSTD_DCtx, FreeContext> context(ZSTD_createDCtx());
  if (context == nullptr) throw std::bad_alloc();
  return context.get();
}

void RequireMemory(size_t result) {
  if (ZSTD_getErrorCode(result) == ZSTD_error_memory_allocation) throw std::bad_alloc();
}

}  // namespace

void PutCompressed(std::string_view bytes, std::string& out) {
  std::string frame(ZSTD_compressBound(bytes.size()), '\0');
  const size_t size =
      ZSTD_compress2(Compressor(), frame.data(), frame.size(), bytes.data(), bytes.size());
  RequireMemory(size);
  DLSIM_CHECK(!ZSTD_isError(size));
  PutVarint(bytes.size(), out);
  PutString(std::string_view(frame).substr(0, size), out);
}

std::string TakeCompressed(ByteReader& in, uint64_t max_size) {
  const uint64_t size = in.Varint();
  const std::string_view frame = in.Take(in.Varint());
  in.Require(size <= max_size && size / kBlockBytes <= frame.size() / kLeastBlock,
             "damaged: a part is too large");
  in.Require(ZSTD_getFrameContentSize(frame.data(), frame.size()) == size &&
                 ZSTD_findFrameCompressedSize(frame.data(), frame.size()) == frame.size(),
             "damaged: a part is not a zstd frame of its size");
  std::string bytes(static_cast<size_t>(size), '\0');
  const size_t result =
      ZSTD_decompressDCtx(Decompressor(), bytes.data(), bytes.size(), frame.data(), frame.size());
  RequireMemory(result);
  in.Require(!ZSTD_isError(result) && result == size, "damaged: a part cannot be decompressed");
  return bytes;
}

}  // namespace dlsim
