/// The names that a file of samples may give to what it holds.
#pragma once

#include <string_view>

namespace mgfl::data {

/// Which files they stand in; a padded table may have attention_mask.
enum class SampleNames { keys_of_lines, tensors_of_a_table };

/// UserError for a name that would change what is trained and is not read, and for one that is nearly a known
/// one; other names are the user's own. Its text is the rest of a sentence that begins with the place.
void check_sample_name(std::string_view name, SampleNames names);

}  // namespace mgfl::data
