/// Private to the vendor: the generated header must not include it.
#pragma once

#error "a header that specializes nothing was taken for an override"
