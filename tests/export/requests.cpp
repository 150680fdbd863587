// Requests of lengths from standard input, for test_requests.py: "paged", "ragged" or "tables",
// page size, room, stride, count; qo_indptr; kv_indptr (and kv_last_page_len), or seq_lens.
#include <cstdio>
#include <cstring>
#include <cute_attn_bundle/plan_requests.hpp>

namespace {

std::vector<int> numbers(int count) {
  std::vector<int> values(count);
  for (int& value : values) {
    if (std::scanf("%d", &value) != 1) throw std::runtime_error("too few numbers");
  }
  return values;
}

}  // namespace

int main() {
  using cute_attn_planner::KvLengths;
  char kind[16];
  while (std::scanf("%15s", kind) == 1) {
    std::vector<int> const head = numbers(4);
    int const count = head[3];
    std::vector<int> const qo_indptr = numbers(count + 1);
    bool const tables = std::strcmp(kind, "tables") == 0;
    std::vector<int> const keys = numbers(tables ? count : count + 1);
    std::vector<int> const last = numbers(std::strcmp(kind, "paged") == 0 ? count : 0);
    KvLengths const lengths =
        tables         ? KvLengths::block_tables(keys.data(), head[0], head[1], head[2])
        : last.empty() ? KvLengths::ragged(keys.data(), head[1])
                       : KvLengths::paged(keys.data(), last.data(), head[0], head[1]);
    try {
      for (auto const& r : requests_of(count, qo_indptr.data(), lengths)) {
        std::printf("%ld %ld %ld %ld %ld %ld ", static_cast<long>(r.q_start),
                    static_cast<long>(r.q_len), static_cast<long>(r.kv_start),
                    static_cast<long>(r.kv_len), static_cast<long>(r.q_pos),
                    static_cast<long>(r.id));
      }
    } catch (std::invalid_argument const& error) {
      std::printf("%s", error.what());
    }
    std::printf("\n");
  }
}
