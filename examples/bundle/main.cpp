// Runs steps with the kernels of a bundle, without Python and without the CUDA runtime, and
// compares them with what they should give:
//
//   g++ -std=c++17 -O2 -I BUNDLE -I BUNDLE/include main.cpp -o run_bundle -ldl
//   ./run_bundle BUNDLE STEP...
//
// docs/export.md says how a bundle and steps are written.
#include <cmath>
#include <cstdio>
#include <cstring>

#include "attention.hpp"

namespace {

float from_bf16(std::uint16_t bits) {
  std::uint32_t const wide = std::uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

// Whether a step gives what it should, twice the same bits, and leaves its counters as they were.
bool is_right(example::Attention& attention, example::Step const& step) {
  auto const result = attention.run(step);
  auto const expected = step.array<float>("out");
  auto const expected_lse = step.array<float>("lse");
  if (result.out.size() != expected.size() || result.lse.size() != expected_lse.size()) {
    throw std::runtime_error(step.folder + " has outputs of another size");
  }
  double error = 0, norm = 0, lse_error = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    double const difference = from_bf16(result.out[i]) - expected[i];
    error += difference * difference;
    norm += double{expected[i]} * expected[i];
  }
  error = std::sqrt(error / norm);
  for (std::size_t i = 0; i < expected_lse.size(); ++i) {
    double const difference = std::abs(double{result.lse[i]} - expected_lse[i]);
    if (!(difference <= lse_error)) lse_error = difference;  // NaN stays
  }
  auto const again = attention.run(step);
  bool same = again.out == result.out;
  same = same && std::memcmp(again.lse.data(), result.lse.data(), 4 * again.lse.size()) == 0;
  bool idle = true;
  for (std::int32_t const count : result.arrivals) idle = idle && count == 0;
  bool const right = error <= step.number("bound") && lse_error <= 1e-3 && same && idle;
  std::printf("%s %s\n  error %.2e, lse %.2e%s%s\n  %s\n", right ? "ok  " : "FAIL",
              step.folder.c_str(), error, lse_error, same ? "" : ", a second run differs",
              idle ? "" : ", counters are left", result.about.c_str());
  return right;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) {
    std::fprintf(stderr, "usage: %s BUNDLE STEP...\n", arguments[0]);
    return 2;
  }
  try {
    example::Driver const driver;
    example::Attention attention(driver, arguments[1]);
    bool right = true;
    for (int i = 2; i < count; ++i) {
      right = is_right(attention, example::Step(arguments[i])) && right;
    }
    return right ? 0 : 1;
  } catch (std::exception const& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
