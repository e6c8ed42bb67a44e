// What `mgfl overrides --json` prints, without the rest of mgfl.
#include <cstdio>

#include "mgfl/override/table.hpp"

int main() { std::fputs(mgfl::override_report_json().c_str(), stdout); }
