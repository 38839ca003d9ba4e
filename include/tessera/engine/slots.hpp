// The slot arena at run time: which ranges are taken, and which events must be reached before a
// range that was given back may be written again.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "tessera/backend/backend.hpp"

namespace tessera::engine {

/// Events that are recorded again and again, at stable addresses.
template <Runtime B>
class EventPool {
 public:
  typename B::Event& take() {
    if (free_.empty()) {
      events_.emplace_back();
      return events_.back();
    }
    typename B::Event& event = *free_.back();
    free_.pop_back();
    return event;
  }
  void give_back(typename B::Event& event) { free_.push_back(&event); }

 private:
  std::deque<typename B::Event> events_;
  std::vector<typename B::Event*> free_;
};

/// Every range has one owner, and, once given back, one event that its next owner waits for. What
/// is free is decided in program order, so that it is the same on every rank; whether the memory
/// is really free is the events' business.
template <Runtime B>
class SlotArena {
 public:
  SlotArena(B& backend, EventPool<B>& events) : backend_(backend), events_(events) {}

  void set_size(std::uint64_t bytes) { size_ = bytes; }
  std::uint64_t used_bytes() const { return used_; }

  /// Takes `bytes` at `preferred` if that range is free, else at the lowest offset that is, and
  /// makes `stream` wait for the range's former owners. Nothing when no range is free.
  std::optional<std::uint64_t> take(std::uint64_t bytes, std::uint64_t preferred,
                                    typename B::Stream& stream) {
    std::optional<std::uint64_t> offset;
    if (preferred <= size_ && bytes <= size_ - preferred && is_free(preferred, bytes)) {
      offset = preferred;
    } else {
      offset = first_free(bytes);
    }
    if (!offset) return offset;
    taken_.push_back({*offset, *offset + bytes, nullptr});
    used_ += bytes;
    wait_for_former_owners(*offset, bytes, stream);
    return offset;
  }

  /// The owner's last use of the range is what `stream` holds so far. The range stays taken.
  void finish_use(std::uint64_t offset, typename B::Stream& stream) {
    for (Piece& piece : taken_) {
      if (piece.begin != offset) continue;
      piece.last_use = &events_.take();
      backend_.record(*piece.last_use, stream);
      return;
    }
  }

  /// Gives the range back, after finish_use: its next owner waits for that.
  void give_back(std::uint64_t offset) {
    for (std::size_t i = 0; i < taken_.size(); ++i) {
      if (taken_[i].begin != offset) continue;
      const Piece piece = taken_[i];
      taken_[i] = taken_.back();
      taken_.pop_back();
      used_ -= piece.end - piece.begin;
      forget_fences_within(piece);
      fences_.push_back(piece);
      return;
    }
  }

  /// Both at once.
  void give_back(std::uint64_t offset, typename B::Stream& stream) {
    finish_use(offset, stream);
    give_back(offset);
  }

 private:
  struct Piece {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    typename B::Event* last_use = nullptr;
  };

  // The owner has waited for them, and the new event comes after its use.
  void forget_fences_within(const Piece& range) {
    for (std::size_t i = 0; i < fences_.size();) {
      if (range.begin <= fences_[i].begin && fences_[i].end <= range.end) {
        drop_fence(i);
      } else {
        ++i;
      }
    }
  }
  // Its event may be recorded again at once: a wait keeps the number of the record it means.
  void drop_fence(std::size_t i) {
    events_.give_back(*fences_[i].last_use);
    fences_[i] = fences_.back();
    fences_.pop_back();
  }

  static bool overlap(const Piece& a, std::uint64_t begin, std::uint64_t end) {
    return a.begin < end && begin < a.end;
  }
  bool is_free(std::uint64_t offset, std::uint64_t bytes) const {
    for (const Piece& piece : taken_) {
      if (overlap(piece, offset, offset + bytes)) return false;
    }
    return true;
  }
  std::optional<std::uint64_t> first_free(std::uint64_t bytes) const {
    std::uint64_t best = size_ + 1;
    const auto consider = [&](std::uint64_t offset) {
      if (bytes <= size_ && offset <= size_ - bytes && offset < best && is_free(offset, bytes)) {
        best = offset;
      }
    };
    consider(0);
    for (const Piece& piece : taken_) consider(piece.end);
    if (best > size_) return std::nullopt;
    return best;
  }
  void wait_for_former_owners(std::uint64_t offset, std::uint64_t bytes,
                              typename B::Stream& stream) {
    for (std::size_t i = 0; i < fences_.size();) {
      const Piece& fence = fences_[i];
      if (!overlap(fence, offset, offset + bytes)) {
        ++i;
        continue;
      }
      backend_.wait(stream, *fence.last_use);
      // A fence that is only partly covered stays for the rest of its range.
      if (offset <= fence.begin && fence.end <= offset + bytes) {
        drop_fence(i);
      } else {
        ++i;
      }
    }
  }

  B& backend_;
  EventPool<B>& events_;
  std::uint64_t size_ = 0;
  std::uint64_t used_ = 0;
  std::vector<Piece> taken_;
  std::vector<Piece> fences_;  // given back, and not yet waited for by who took all of it
};

}  // namespace tessera::engine
