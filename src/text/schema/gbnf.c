/* Characters and literals in GBNF syntax. */
#include "text/schema/internal.h"

void tn__schema_append_code(tn__text *out, uint32_t code) {
    if (code == '"' || code == '\\' || code == '[' || code == ']' || code == '^' || code == '-')
        tn__text_printf(out, "\\%c", (char)code);
    else if (code >= 0x20 && code < 0x7f)
        tn__text_printf(out, "%c", (char)code);
    else if (code < 0x100)
        tn__text_printf(out, "\\x%02X", code);
    else if (code < 0x10000)
        tn__text_printf(out, "\\u%04X", code);
    else
        tn__text_printf(out, "\\U%08X", code);
}

void tn__schema_append_literal(tn__text *out, const char *utf8, size_t count) {
    tn__text_puts(out, "\"");
    for (size_t i = 0; i < count; i++) {
        uint8_t c = (uint8_t)utf8[i];
        if (c == '"' || c == '\\')
            tn__text_printf(out, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            tn__text_printf(out, "\\x%02X", c);
        else
            tn__text_append(out, utf8 + i, 1);
    }
    tn__text_puts(out, "\"");
}
