// The one compile-time walk over the model's structs; everything else loops over its result.
#include <boost/hana/accessors.hpp>
#include <boost/hana/adapt_struct.hpp>
#include <boost/hana/for_each.hpp>
#include <boost/hana/second.hpp>

#include "policies/model/decoder.hpp"

BOOST_HANA_ADAPT_STRUCT(mgfl::model::SelfAttention, linear_qkv_weight, linear_qkv_bias, q_layernorm_weight,
                        k_layernorm_weight, linear_proj_weight, linear_proj_bias);
BOOST_HANA_ADAPT_STRUCT(mgfl::model::Mlp, linear_fc1_weight, linear_fc1_bias, linear_fc2_weight,
                        linear_fc2_bias);
BOOST_HANA_ADAPT_STRUCT(mgfl::model::DecoderLayer, input_layernorm_weight, self_attention,
                        pre_mlp_layernorm_weight, mlp);
BOOST_HANA_ADAPT_STRUCT(mgfl::model::ValueHead, weight, bias);
BOOST_HANA_ADAPT_STRUCT(mgfl::model::Decoder, word_embeddings, layers, final_layernorm, output_layer,
                        value_head);

namespace mgfl::model {

namespace {

namespace hana = boost::hana;

template <class Placement>
void collect(Param<Placement>& param, std::vector<ParamRef>& found) {
  found.push_back({&param.desc, &param.value, &param.main_grad});
}

template <class Module>
requires(hana::Struct<Module>::value) void collect(Module& module, std::vector<ParamRef>& found);

template <class Part>
void collect(std::optional<Part>& part, std::vector<ParamRef>& found) {
  if (part) collect(*part, found);
}

template <class Part>
void collect(std::vector<Part>& parts, std::vector<ParamRef>& found) {
  for (auto& part : parts) collect(part, found);
}

template <class Module>
requires(hana::Struct<Module>::value) void collect(Module& module, std::vector<ParamRef>& found) {
  hana::for_each(hana::accessors<Module>(),
                 [&](auto member) { collect(hana::second(member)(module), found); });
}

}  // namespace

std::vector<ParamRef> Decoder::parameters() {
  std::vector<ParamRef> found;
  collect(*this, found);
  return found;
}

}  // namespace mgfl::model
