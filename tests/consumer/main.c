/* Uses an installed tenon the way a stranger would: through its headers and libraries only. */
#include <tenon/base.h>

#include <stdio.h>
#include <string.h>

int main(void) {
    if (tn_fail(TN_E_SHAPE, "%d by %d", 2, 3) != TN_E_SHAPE || strcmp(tn_error(), "2 by 3") != 0) return 1;
    printf("consumer of tenon %s\n", tn_version());
    return 0;
}
