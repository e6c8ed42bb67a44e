#include "policies/data/sample_names.hpp"

#include <array>

#include "mgfl/base/edit_distance.hpp"
#include "mgfl/base/error.hpp"

namespace mgfl::data {
namespace {

constexpr std::array<std::string_view, 5> known_names{"input_ids", "labels", "loss_mask", "returns",
                                                      "attention_mask"};
// Names of other programs' samples that would change what is trained; ignoring them in silence would be
// wrong.
constexpr std::array<std::string_view, 3> unsupported_names{"attention_mask", "position_ids", "cu_seqlens"};

}  // namespace

void check_sample_name(std::string_view name, SampleNames names) {
  const bool table = names == SampleNames::tensors_of_a_table;
  const std::string_view what = table ? "tensor" : "key";
  if (table && name == "attention_mask") return;
  for (const std::string_view other : unsupported_names)
    check_user(name != other, "has the ", what, " \"", name, "\", which is not supported; leave it out.");
  for (const std::string_view known : known_names)
    if (name == known) return;
  // Other names may hold what people like to keep beside the tokens, but a slip of the pen must not pass for
  // one.
  for (const std::string_view known : known_names)
    check_user(edit_distance(name, known) > 2, "has the ", what, " \"", name, "\"; did you mean \"", known,
               "\"?");
}

}  // namespace mgfl::data
