// A step to run and what should come of it, read from a folder: `step.txt`, lines of a name and
// numbers, and arrays as they lie in memory.
#pragma once

#include <cstdint>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace example {

inline std::vector<char> read_file(std::string const& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

template <class T>
std::vector<T> read_array(std::string const& path) {
  std::vector<char> const bytes = read_file(path);
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(values.data()));
  return values;
}

struct Step {
  std::string folder;
  std::map<std::string, std::vector<double>> numbers;
  std::string schedule;  // kernel family, or empty: the default

  explicit Step(std::string const& from) : folder(from) {
    std::ifstream file(folder + "/step.txt");
    if (!file) throw std::runtime_error("cannot read " + folder + "/step.txt");
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string name;
      words >> name;
      if (name == "schedule") {
        words >> schedule;
      } else {
        numbers[name] = {std::istream_iterator<double>(words), std::istream_iterator<double>()};
      }
    }
  }

  std::vector<double> const& list(std::string const& name) const {
    auto const found = numbers.find(name);
    if (found == numbers.end()) throw std::runtime_error(folder + "/step.txt lacks " + name);
    return found->second;
  }
  double number(std::string const& name) const { return list(name).at(0); }
  int integer(std::string const& name) const { return static_cast<int>(number(name)); }
  std::vector<std::int32_t> integers(std::string const& name) const {
    std::vector<double> const& found = list(name);
    return {found.begin(), found.end()};
  }
  template <class T>
  std::vector<T> array(std::string const& name) const {
    return read_array<T>(folder + "/" + name + ".bin");
  }
};

}  // namespace example
