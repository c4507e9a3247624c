// SPDX-License-Identifier: Apache-2.0
// The processes that work on one trace together: those that mpirun or srun started, else this one.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace dlsim::sim {

class Ranks {
 public:
  // Joins the others if a launcher started this process as one of several. Throws UsageError if it
  // did and dlsim was built without MPI.
  Ranks();
  ~Ranks();  // waits for the others
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Returns the bytes that rank 0 gave. All ranks must call it.
  std::string Broadcast(std::string bytes) const;

  // Returns what each rank gave. All ranks must call it.
  std::vector<int> Gather(int value) const;

  // Waits until all ranks do.
  void Barrier() const;

  // Sends to rank 0, once that has taken what this rank sent before: no more than one piece waits.
  void Send(std::string bytes);

  // Waits until rank 0 has taken what was sent.
  void Flush();

  // Returns what a rank sent next. For rank 0.
  std::string Receive(int from) const;

  // Ends all ranks.
  [[noreturn]] void Abort(int exit_code) const;

 private:
  int rank_ = 0;
  int size_ = 1;
  struct Outgoing;
  std::unique_ptr<Outgoing> outgoing_;
};

}  // namespace dlsim::sim
