// SPDX-License-Identifier: Apache-2.0
#include "bench/peers.h"

#include <memory>
#include <span>
#include <string>
#include <utility>

#ifdef DLSIM_HAVE_AVX512_PEERS
#include "bench/peers_avx512.h"
#endif
#ifdef DLSIM_HAVE_ONEDNN
#include <oneapi/dnnl/dnnl.hpp>
#endif

namespace dlsim::bench {
namespace {

#ifdef DLSIM_HAVE_AVX512_PEERS

using EncodeFunction = void (*)(const float*, size_t, uint16_t*);
using DecodeFunction = void (*)(const uint16_t*, size_t, float*);

Kernel EncodePeer(const char* format, const char* name, EncodeFunction encode) {
  return {Owner::kPeer,
          Sharing::kByCaller,
          "Encode",
          format,
          "rne",
          name,
          kEncodeTraffic,
          [=](ArrayStore&, const Arrays& arrays) -> RangeKernel {
            return [=](size_t begin, size_t count) {
              encode(arrays.values.data() + begin, count, arrays.codes.data() + begin);
            };
          }};
}

Kernel DecodePeer(const char* name, const Format& format, const char* format_name,
                  DecodeFunction decode) {
  return {Owner::kPeer,
          Sharing::kByCaller,
          "Decode",
          format_name,
          "-",
          name,
          kDecodeTraffic,
          [=](ArrayStore& store, const Arrays& arrays) -> RangeKernel {
            const std::span<const uint16_t> codes = store.Encoded(arrays, format);
            return [=](size_t begin, size_t count) {
              decode(codes.data() + begin, count, arrays.floats.data() + begin);
            };
          }};
}

bool MachineHasAvx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}

void AddAvx512Peers(std::vector<Kernel>& kernels) {
  if (!MachineHasAvx512()) return;
  kernels.push_back(EncodePeer("fp16", "F16C", EncodeFp16ByHardware));
  kernels.push_back(DecodePeer("F16C", kFp16, "fp16", DecodeFp16ByHardware));
#ifdef DLSIM_HAVE_EIGEN
  kernels.push_back(EncodePeer("fp16", "Eigen", EncodeFp16ByEigen));
  kernels.push_back(EncodePeer("bf16", "Eigen", EncodeBf16ByEigen));
  kernels.push_back(DecodePeer("Eigen", kFp16, "fp16", DecodeFp16ByEigen));
  kernels.push_back(DecodePeer("Eigen", kBf16, "bf16", DecodeBf16ByEigen));
#endif
}

#endif  // DLSIM_HAVE_AVX512_PEERS

#ifdef DLSIM_HAVE_ONEDNN

using DataType = dnnl::memory::data_type;

// A reorder between two arrays, ready to run.
class Reorder {
 public:
  Reorder(const void* from, DataType from_type, void* to, DataType to_type, size_t count)
      : engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_),
        from_(Describe(from_type, count), engine_, const_cast<void*>(from)),
        to_(Describe(to_type, count), engine_, to),
        reorder_(from_, to_) {}

  void Run() {
    reorder_.execute(stream_, from_, to_);
    stream_.wait();
  }

 private:
  static dnnl::memory::desc Describe(DataType type, size_t count) {
    return {{static_cast<dnnl::memory::dim>(count)}, type, dnnl::memory::format_tag::a};
  }

  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::memory from_, to_;
  dnnl::reorder reorder_;
};

// Whether this oneDNN converts to the type on this processor.
bool Reorders(DataType type) {
  try {
    float value = 0;
    uint16_t code = 0;
    Reorder(&value, DataType::f32, &code, type, 1).Run();
    Reorder(&code, type, &value, DataType::f32, 1).Run();
    return true;
  } catch (const dnnl::error&) {
    return false;
  }
}

void AddOneDnn(const char* format_name, const Format& format, DataType type,
               std::vector<Kernel>& kernels) {
  if (!Reorders(type)) return;
  // A reorder is made for whole arrays.
  const auto runner = [](std::shared_ptr<Reorder> reorder) -> RangeKernel {
    return [reorder = std::move(reorder)](size_t, size_t) { reorder->Run(); };
  };
  kernels.push_back({Owner::kPeer, Sharing::kByKernel, "Encode", format_name, "rne", "oneDNN",
                     kEncodeTraffic, [=](ArrayStore&, const Arrays& arrays) {
                       return runner(std::make_shared<Reorder>(arrays.values.data(), DataType::f32,
                                                               arrays.codes.data(), type,
                                                               arrays.values.size()));
                     }});
  kernels.push_back({Owner::kPeer, Sharing::kByKernel, "Decode", format_name, "-", "oneDNN",
                     kDecodeTraffic, [=](ArrayStore& store, const Arrays& arrays) {
                       return runner(std::make_shared<Reorder>(
                           store.Encoded(arrays, format).data(), type, arrays.floats.data(),
                           DataType::f32, arrays.floats.size()));
                     }});
}

#endif  // DLSIM_HAVE_ONEDNN

}  // namespace

std::vector<Kernel> Peers() {
  std::vector<Kernel> kernels;
#ifdef DLSIM_HAVE_AVX512_PEERS
  AddAvx512Peers(kernels);
#endif
#ifdef DLSIM_HAVE_ONEDNN
  AddOneDnn("fp16", kFp16, DataType::f16, kernels);
  AddOneDnn("bf16", kBf16, DataType::bf16, kernels);
#endif
  return kernels;
}

}  // namespace dlsim::bench
