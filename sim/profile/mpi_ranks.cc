// SPDX-License-Identifier: Apache-2.0
#include "sim/profile/mpi_ranks.h"

#include <stdexcept>
#include <utility>

#include "dlsim/error.h"
#include "sim/base/caller.h"
#include "sim/profile/launcher.h"

#ifdef DLSIM_WITH_MPI
// Open MPI's and MPICH's headers would pull in the C++ bindings, which MPI has dropped.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#endif

namespace dlsim::sim {

#ifdef DLSIM_WITH_MPI

namespace {

constexpr int kTag = 0;
constexpr size_t kMaxMessage = size_t{1} << 30;  // MPI counts in int

// Calls `pass` for each message that carries a part of `size` bytes: offset and length.
template <class Pass>
void InMessages(size_t size, const Pass& pass) {
  for (size_t begin = 0; begin < size; begin += kMaxMessage) {
    pass(begin, static_cast<int>(std::min(kMaxMessage, size - begin)));
  }
}

}  // namespace

struct Ranks::Outgoing {
  uint64_t size = 0;
  std::string bytes;
  std::vector<MPI_Request> requests;
};

Ranks::Ranks() : outgoing_(std::make_unique<Outgoing>()) {
  if (LaunchOfThisProcess() != Launch::kMpi) return;
  if (!CurrentCaller().OwnsProcess()) {
    throw UsageError("", "started by MPI as one of several processes",
                     "mpirun dlsim profile, or --shard in processes of their own");
  }
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);  // others run OpenMP
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  if (size_ > 1) return;
  MPI_Finalize();
  throw UsageError("", "started as one of several processes that MPI does not know of",
                   "the launcher of the MPI that dlsim was built with");
}

Ranks::~Ranks() {
  if (size_ > 1) MPI_Finalize();
}

std::string Ranks::Broadcast(std::string bytes) const {
  if (size_ == 1) return bytes;
  uint64_t size = bytes.size();
  MPI_Bcast(&size, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
  bytes.resize(size);
  InMessages(size, [&](size_t begin, int length) {
    MPI_Bcast(bytes.data() + begin, length, MPI_BYTE, 0, MPI_COMM_WORLD);
  });
  return bytes;
}

std::vector<int> Ranks::Gather(int value) const {
  if (size_ == 1) return {value};
  std::vector<int> values(static_cast<size_t>(size_));
  MPI_Allgather(&value, 1, MPI_INT, values.data(), 1, MPI_INT, MPI_COMM_WORLD);
  return values;
}

void Ranks::Barrier() const {
  if (size_ > 1) MPI_Barrier(MPI_COMM_WORLD);
}

void Ranks::Send(std::string bytes) {
  Flush();
  outgoing_->bytes = std::move(bytes);
  outgoing_->size = outgoing_->bytes.size();
  const auto send = [&](const void* data, int count, MPI_Datatype type) {
    MPI_Request& request = outgoing_->requests.emplace_back();
    MPI_Issend(data, count, type, 0, kTag, MPI_COMM_WORLD, &request);
  };
  send(&outgoing_->size, 1, MPI_UINT64_T);
  InMessages(outgoing_->bytes.size(), [&](size_t begin, int length) {
    send(outgoing_->bytes.data() + begin, length, MPI_BYTE);
  });
}

void Ranks::Flush() {
  MPI_Waitall(static_cast<int>(outgoing_->requests.size()), outgoing_->requests.data(),
              MPI_STATUSES_IGNORE);
  outgoing_->requests.clear();
}

std::string Ranks::Receive(int from) const {
  uint64_t size = 0;
  MPI_Recv(&size, 1, MPI_UINT64_T, from, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  std::string bytes(size, '\0');
  InMessages(size, [&](size_t begin, int length) {
    MPI_Recv(bytes.data() + begin, length, MPI_BYTE, from, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  });
  return bytes;
}

void Ranks::Abort(int exit_code) const {
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);  // OwnsProcess
}

#else

struct Ranks::Outgoing {};

Ranks::Ranks() {
  if (LaunchOfThisProcess() != Launch::kMpi) return;
  throw UsageError("", "started as one of several processes, but dlsim was built without MPI",
                   "a build configured with -DDLSIM_ENABLE_MPI=ON, or --shard in processes of "
                   "their own");
}

// One rank has nobody to talk to.
Ranks::~Ranks() = default;
std::string Ranks::Broadcast(std::string bytes) const { return bytes; }
std::vector<int> Ranks::Gather(int value) const { return {value}; }
void Ranks::Barrier() const {}
void Ranks::Send(std::string) {}
void Ranks::Flush() {}
std::string Ranks::Receive(int) const { return {}; }
void Ranks::Abort(int) const { throw std::logic_error("a single rank has no others to end"); }

#endif

}  // namespace dlsim::sim
