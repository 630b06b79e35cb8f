/* Chat templates by name, as --chat-template takes them, for models whose files have none: each a small Jinja
 * program. */
#include "text/chat/internal.h"

/* Pieces that several templates share. */
#define EACH "{%- for m in messages -%}"
#define END_EACH "{%- endfor -%}"
#define IF_SYSTEM "{%- if m.role == 'system' -%}"
#define IF_USER "{%- if m.role == 'user' -%}"
#define OR_USER "{%- elif m.role == 'user' -%}"
#define OR_SYSTEM "{%- elif m.role == 'system' -%}"
#define ELSE "{%- else -%}"
#define END_IF "{%- endif -%}"
#define ANSWER(text) "{%- if add_generation_prompt -%}{{- '" text "' -}}{%- endif -%}"
/* A role between two markers, the content, and the end of the turn. */
#define TURNS(begin, middle, end) EACH "{{- '" begin "' + m.role + '" middle "' + m.content + '" end "' -}}" END_EACH
/* The system's text stands before the first user's. */
#define SYSTEM_FIRST                                                                                                 \
    "{%- set ns = namespace(text='') -%}" EACH IF_SYSTEM "{%- set ns.text = ns.text + m.content + '\\n\\n' -%}"

static const struct {
    const char *name, *source;
} named[] = {
    {"chatml", TURNS("<|im_start|>", "\\n", "<|im_end|>\\n") ANSWER("<|im_start|>assistant\\n")},
    {"llama2", "{%- set ns = namespace(system='') -%}" EACH IF_SYSTEM
               "{%- set ns.system = '<<SYS>>\\n' + m.content + '\\n<</SYS>>\\n\\n' -%}" OR_USER
               "{{- bos_token + '[INST] ' + ns.system + m.content + ' [/INST]' -}}{%- set ns.system = '' -%}" ELSE
               "{{- ' ' + m.content + ' ' + eos_token -}}" END_IF END_EACH},
    {"llama3", "{{- bos_token -}}" TURNS("<|start_header_id|>", "<|end_header_id|>\\n\\n", "<|eot_id|>")
                   ANSWER("<|start_header_id|>assistant<|end_header_id|>\\n\\n")},
    {"llama4", "{{- bos_token -}}" TURNS("<|header_start|>", "<|header_end|>\\n\\n", "<|eot|>")
                   ANSWER("<|header_start|>assistant<|header_end|>\\n\\n")},
    {"mistral-v1", "{{- bos_token -}}" SYSTEM_FIRST OR_USER
                   "{{- ' [INST] ' + ns.text + m.content + ' [/INST]' -}}{%- set ns.text = '' -%}" ELSE
                   "{{- ' ' + m.content + eos_token -}}" END_IF END_EACH},
    {"mistral-v3", "{{- bos_token -}}" SYSTEM_FIRST OR_USER
                   "{{- '[INST] ' + ns.text + m.content + '[/INST]' -}}{%- set ns.text = '' -%}" ELSE
                   "{{- ' ' + m.content + eos_token -}}" END_IF END_EACH},
    {"mistral-v7",
     "{{- bos_token -}}" EACH IF_SYSTEM "{{- '[SYSTEM_PROMPT] ' + m.content + '[/SYSTEM_PROMPT]' -}}" OR_USER
     "{{- '[INST] ' + m.content + '[/INST]' -}}" ELSE "{{- ' ' + m.content + eos_token -}}" END_IF END_EACH},
    {"phi3", TURNS("<|", "|>\\n", "<|end|>\\n") ANSWER("<|assistant|>\\n")},
    {"phi4", TURNS("<|im_start|>", "<|im_sep|>", "<|im_end|>") ANSWER("<|im_start|>assistant<|im_sep|>")},
    {"falcon3", TURNS("<|", "|>\\n", "\\n") ANSWER("<|assistant|>\\n")},
    {"zephyr", TURNS("<|", "|>\\n", "<|endoftext|>\\n") ANSWER("<|assistant|>\\n")},
    {"monarch", EACH "{%- set role = bos_token + m.role if loop.index0 else m.role -%}"
                     "{{- role + '\\n' + m.content + '</s>\\n' -}}" END_EACH ANSWER("<s>assistant\\n")},
    {"gemma",
     "{{- bos_token -}}" SYSTEM_FIRST ELSE
     "{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else 'user') + '\\n' + ns.text + m.content + "
     "'<end_of_turn>\\n' -}}{%- set ns.text = '' -%}" END_IF END_EACH ANSWER("<start_of_turn>model\\n")},
    {"orion", "{{- bos_token -}}" SYSTEM_FIRST OR_USER
              "{{- 'Human: ' + ns.text + m.content + '\\n\\nAssistant: ' + eos_token -}}{%- set ns.text = '' -%}" ELSE
              "{{- m.content + eos_token -}}" END_IF END_EACH},
    {"openchat", "{{- bos_token -}}" EACH IF_SYSTEM "{{- m.content + '<|end_of_turn|>' -}}" ELSE
                 "{{- 'GPT4 Correct ' + m.role | title + ': ' + m.content + '<|end_of_turn|>' -}}" END_IF END_EACH
                     ANSWER("GPT4 Correct Assistant:")},
    {"vicuna",
     EACH IF_SYSTEM "{{- m.content + '\\n\\n' -}}" OR_USER "{{- 'USER: ' + m.content + '\\n' -}}" ELSE
                    "{{- 'ASSISTANT: ' + m.content + eos_token + '\\n' -}}" END_IF END_EACH ANSWER("ASSISTANT:")},
    {"deepseek",
     "{{- bos_token -}}" EACH IF_SYSTEM "{{- m.content -}}" OR_USER
     "{{- '### Instruction:\\n' + m.content + '\\n' -}}" ELSE
     "{{- '### Response:\\n' + m.content + '\\n<|EOT|>\\n' -}}" END_IF END_EACH ANSWER("### Response:\\n")},
    {"deepseek2", "{{- bos_token -}}" EACH IF_SYSTEM "{{- m.content + '\\n\\n' -}}" OR_USER
                  "{{- 'User: ' + m.content + '\\n\\n' -}}" ELSE
                  "{{- 'Assistant: ' + m.content + '<｜end▁of▁sentence｜>' -}}" END_IF END_EACH ANSWER("Assistant:")},
    {"deepseek3",
     "{{- bos_token -}}" EACH IF_SYSTEM "{{- m.content + '\\n\\n' -}}" OR_USER "{{- '<｜User｜>' + m.content -}}" ELSE
     "{{- '<｜Assistant｜>' + m.content + '<｜end▁of▁sentence｜>' -}}" END_IF END_EACH ANSWER("<｜Assistant｜>")},
    {"command-r", EACH
     "{%- set role = {'system': 'SYSTEM', 'user': 'USER'}.get(m.role, 'CHATBOT') -%}"
     "{{- '<|START_OF_TURN_TOKEN|><|' + role + '_TOKEN|>' + m.content | trim + '<|END_OF_TURN_TOKEN|>' -}}" END_EACH
         ANSWER("<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>")},
    {"chatglm3", "{{- '[gMASK]sop' -}}" TURNS("<|", "|>\\n ", "") ANSWER("<|assistant|>")},
    {"chatglm4", "{{- '[gMASK]<sop>' -}}" TURNS("<|", "|>\\n", "") ANSWER("<|assistant|>\\n")},
    {"minicpm",
     EACH IF_USER "{{- '<用户>' + m.content | trim + '<AI>' -}}" ELSE "{{- m.content | trim -}}" END_IF END_EACH},
    {"exaone3", EACH IF_USER
     "{{- '[|user|]' + m.content | trim + '\\n' -}}" ELSE
     "{{- '[|' + m.role + '|]' + m.content | trim + '[|endofturn|]\\n' -}}" END_IF END_EACH ANSWER("[|assistant|]")},
    {"granite", TURNS("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>\\n")
                    ANSWER("<|start_of_role|>assistant<|end_of_role|>")},
    {"rwkv-world", EACH IF_SYSTEM
     "{{- 'System: ' + m.content | trim + '\\n\\n' -}}" OR_USER "{{- 'User: ' + m.content | trim + '\\n\\n' -}}" ELSE
     "{{- 'Assistant: ' + m.content | trim + '\\n\\n' -}}" END_IF END_EACH ANSWER("Assistant:")},
    {"gigachat", EACH IF_SYSTEM
     "{{- m.content + '<|message_sep|>' -}}" OR_USER
     "{{- 'user<|role_sep|>' + m.content + '<|message_sep|>available functions<|role_sep|>[]<|message_sep|>' -}}" ELSE
     "{{- 'assistant<|role_sep|>' + m.content + '<|message_sep|>' -}}" END_IF END_EACH ANSWER(
         "assistant<|role_sep|>")},
    {"smolvlm", "{{- '<|im_start|>' -}}" EACH IF_SYSTEM "{{- m.content + '\\n\\n' -}}" OR_USER
                "{{- 'User: ' + m.content + '<end_of_utterance>\\n' -}}" ELSE
                "{{- 'Assistant: ' + m.content + '<end_of_utterance>\\n' -}}" END_IF END_EACH ANSWER("Assistant:")},
};

const char *tn_chat_template_by_name(const char *name) {
    for (size_t i = 0; name && i < sizeof named / sizeof *named; i++)
        if (strcmp(named[i].name, name) == 0) return named[i].source;
    return NULL;
}

const char *tn_chat_template_name(size_t index) {
    return index < sizeof named / sizeof *named ? named[index].name : NULL;
}
