"""Trains models/tales.gguf: a small Llama distilled from stories15M.

  python3 train.py --teacher stories15M-f16.gguf --out OUT [--logits stories15M-f16.logits] [--minutes 9.5]

1. The teacher writes a large set of stories; for every token its 16 likeliest continuations are kept.
2. A byte-level BPE tokenizer of 4,096 tokens is trained on them.
3. The student learns to predict its own tokens, and wherever one of its tokens starts where a teacher's token starts,
   also the teacher's distribution there, translated: a teacher's token counts for the student's tokens that really
   stood in its place in the stories, by how often they did.
4. OUT/tales-f16.gguf, OUT/report.json. `tenon quantize tales-f16.gguf tales.gguf Q8_0` makes the file we ship.
"""
import argparse
import json
import math
import multiprocessing
import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

import gguf_io

DEVICE = "cuda"
START = time.time()


def say(text):
    print("[%6.1f s] %s" % (time.time() - START, text), flush=True)


# ---- Models: the same Llama for teacher and student ----------------------------------------------------------------


def rope_tables(length, size, base=10000.0):
    inverse = base ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
    angle = torch.outer(torch.arange(length, dtype=torch.float32), inverse)
    return angle.cos().to(DEVICE), angle.sin().to(DEVICE)


def rotate(x, cos, sin):
    """x [batch, heads, tokens, size]; neighbours (0,1)(2,3)… rotate together, as GGUF's llama files have it."""
    pairs = x.float().reshape(*x.shape[:-1], -1, 2)
    a, b = pairs[..., 0], pairs[..., 1]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(x.dtype)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, h, kv, s, f = c["dim"], c["heads"], c["kv_heads"], c["dim"] // c["heads"], c["ff"]
        self.h, self.kv, self.s, self.eps = h, kv, s, c["eps"]
        self.norm1, self.norm2 = nn.Parameter(torch.ones(d)), nn.Parameter(torch.ones(d))
        self.q, self.k, self.v = nn.Linear(d, h * s, bias=False), nn.Linear(d, kv * s, bias=False), nn.Linear(d, kv * s, bias=False)
        self.o = nn.Linear(h * s, d, bias=False)
        self.gate, self.up, self.down = nn.Linear(d, f, bias=False), nn.Linear(d, f, bias=False), nn.Linear(f, d, bias=False)

    def heads(self, x, n):
        return x.view(x.shape[0], x.shape[1], n, self.s).transpose(1, 2)

    def forward(self, x, cos, sin, cache=None, at=None):
        y = F.rms_norm(x, (x.shape[-1],), self.norm1, self.eps)
        q, k, v = self.heads(self.q(y), self.h), self.heads(self.k(y), self.kv), self.heads(self.v(y), self.kv)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if cache is None:
            k, v = (t.repeat_interleave(self.h // self.kv, 1) for t in (k, v))
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            cache[0][:, :, at : at + 1], cache[1][:, :, at : at + 1] = k, v
            a = F.scaled_dot_product_attention(q, cache[0][:, :, : at + 1], cache[1][:, :, : at + 1])
        x = x + self.o(a.transpose(1, 2).reshape(x.shape[0], x.shape[1], -1))
        y = F.rms_norm(x, (x.shape[-1],), self.norm2, self.eps)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.embed = nn.Embedding(c["vocab"], c["dim"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["layers"]))
        self.norm = nn.Parameter(torch.ones(c["dim"]))
        self.out = nn.Linear(c["dim"], c["vocab"], bias=False)
        self.cos, self.sin = rope_tables(c["context"], c["dim"] // c["heads"])

    def forward(self, tokens):
        x, n = self.embed(tokens), tokens.shape[1]
        for layer in self.layers:
            x = layer(x, self.cos[:n], self.sin[:n])
        return self.out(F.rms_norm(x, (x.shape[-1],), self.norm, self.c["eps"]))

    def step(self, tokens, caches, at):
        x = self.embed(tokens)[:, None]
        for layer, cache in zip(self.layers, caches):
            x = layer(x, self.cos[at : at + 1], self.sin[at : at + 1], cache, at)
        return self.out(F.rms_norm(x, (x.shape[-1],), self.norm, self.c["eps"]))[:, 0]


NAMES = {"norm1": "attn_norm", "norm2": "ffn_norm", "q.weight": "attn_q", "k.weight": "attn_k", "v.weight": "attn_v",
         "o.weight": "attn_output", "gate.weight": "ffn_gate", "up.weight": "ffn_up", "down.weight": "ffn_down"}


def gguf_name(name):
    fixed = {"embed.weight": "token_embd.weight", "norm": "output_norm.weight", "out.weight": "output.weight"}
    if name in fixed:
        return fixed[name]
    _, layer, rest = name.split(".", 2)
    return "blk.%s.%s.weight" % (layer, NAMES[rest])


def load_teacher(path):
    file = gguf_io.Reader(path)
    k = lambda name: file.keys["llama." + name]
    config = dict(vocab=len(file.keys["tokenizer.ggml.tokens"]), dim=k("embedding_length"), layers=k("block_count"), heads=k("attention.head_count"),
                  kv_heads=file.keys.get("llama.attention.head_count_kv", k("attention.head_count")), ff=k("feed_forward_length"),
                  eps=k("attention.layer_norm_rms_epsilon"), context=max(k("context_length"), 256))
    model = Llama(config).to(DEVICE)
    state = {}
    for name in model.state_dict():
        source = gguf_name(name)
        if source == "output.weight" and source not in file.tensors:
            source = "token_embd.weight"
        state[name] = torch.from_numpy(file.tensors[source])
    model.load_state_dict(state)
    return model.eval(), file.keys["tokenizer.ggml.tokens"]


def check_teacher(model, path):
    """The teacher here must be the teacher meant: same logits as the reference."""
    raw = np.fromfile(path, dtype=np.int32)
    n, vocab = int(raw[0]), int(raw[1])
    tokens = torch.from_numpy(raw[2 : 2 + n].astype(np.int64))[None].to(DEVICE)
    want = torch.from_numpy(np.fromfile(path, dtype=np.float32)[2 + n :].reshape(n, vocab)).to(DEVICE)
    with torch.no_grad():
        got = model(tokens)[0]
    error = ((got - want) ** 2).sum().item() / (want**2).sum().item()
    say("teacher against its reference logits: NMSE %.2e" % error)
    assert error < 1e-4, "the teacher is not read correctly"


# ---- Stories ---------------------------------------------------------------------------------------------------------


@torch.no_grad()
def write_stories(model, seconds, batch, length, top, temperature, top_p):
    """[stories, length] tokens with the teacher's `top` likeliest continuations for each position."""
    c = model.c
    model = model.to(torch.bfloat16)
    caches = [[torch.zeros(batch, c["kv_heads"], length, c["dim"] // c["heads"], device=DEVICE, dtype=torch.bfloat16) for _ in range(2)] for _ in range(c["layers"])]
    stories, ids, probs = [], [], []
    begin = time.time()
    while time.time() - begin < seconds:
        tokens = torch.full((batch, length + 1), 1, dtype=torch.int16, device=DEVICE)
        idx = torch.empty(batch, length, top, dtype=torch.int16, device=DEVICE)
        prob = torch.empty(batch, length, top, dtype=torch.float16, device=DEVICE)
        current = torch.ones(batch, dtype=torch.long, device=DEVICE)
        ended = torch.zeros(batch, dtype=torch.bool, device=DEVICE)
        for at in range(length):
            logits = model.step(current, caches, at)
            # 64 candidates carry all but a sliver of the mass of this model's distributions. They are sought in the
            # 24 blocks of 128 with the largest maxima, which is many times faster than among all.
            blocks = logits.view(batch, -1, 128)
            where = blocks.amax(-1).topk(24, sorted=False).indices
            value, index = blocks.gather(1, where[..., None].expand(-1, -1, 128)).view(batch, -1).topk(64, sorted=True)
            index = where.gather(1, index // 128) * 128 + index % 128
            value = value.float()
            p = (value - logits.float().logsumexp(-1, keepdim=True)).exp()
            idx[:, at], prob[:, at] = index[:, :top].to(torch.int16), p[:, :top].to(torch.float16)
            q = torch.softmax(value / temperature, -1)
            q = torch.where(q.cumsum(-1) - q < top_p, q, torch.zeros_like(q))
            current = index.gather(1, torch.multinomial(q, 1))[:, 0]
            current = torch.where(ended, torch.ones_like(current), current)
            ended = ended | (current <= 2)
            tokens[:, at + 1] = current.to(torch.int16)
        stories.append(tokens), ids.append(idx), probs.append(prob)
    model.float()
    return torch.cat(stories), torch.cat(ids), torch.cat(probs)


def text_of(row, pieces):
    """Text of a story and the start (in characters) of each of its tokens; it ends at the first token ≤ 2."""
    parts, offsets, at = [], [], 0
    for token in row[1:]:
        if token <= 2:
            break
        piece = pieces[token]
        if not parts:
            piece = piece.lstrip(" ")
        offsets.append(at)
        parts.append(piece)
        at += len(piece)
    return "".join(parts), offsets


def plain_pieces(tokens):
    out = []
    for token in tokens:
        if len(token) == 6 and token.startswith("<0x"):
            byte = int(token[3:5], 16)
            out.append(chr(byte) if byte < 128 else "\ufffd")
        else:
            out.append(token.replace("\u2581", " "))
    return out


def train_tokenizer(texts, vocab):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=["<|story|>", "<|end|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


# ---- Training --------------------------------------------------------------------------------------------------------


# What the worker processes share with the one that forks them.
SHARED = {}


def stream_part(span):
    """Student tokens of stories begin … end-1: <|story|> text <|end|> …; beside each token the teacher's position that
    starts at the same character, or -1; then the stories' starts, lengths in characters and in teacher tokens."""
    begin, end = span
    pieces, tokenizer, length = SHARED["pieces"], SHARED["tokenizer"], SHARED["length"]
    stream, align, starts, chars, counts = [], [], [], [], []
    for i in range(begin, end):
        text, offsets = text_of(SHARED["tokens"][i], pieces)
        code = tokenizer.encode(text)
        where = {offset: i * length + j for j, offset in enumerate(offsets)}
        starts.append(len(stream))
        chars.append(len(text))
        counts.append(len(offsets))
        stream.append(0)
        align.append(-1)
        stream.extend(code.ids)
        align.extend(where.get(o[0], -1) for o in code.offsets)
        stream.append(1)
        align.append(-1)
    return np.array(stream, dtype=np.int16), np.array(align, dtype=np.int64), np.array(starts), np.array(chars), np.array(counts)


def build_stream(begin, end, workers=14):
    edges = np.linspace(begin, end, workers * 4 + 1).astype(int)
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        parts = pool.map(stream_part, [(int(a), int(b)) for a, b in zip(edges, edges[1:]) if b > a])
    base = np.cumsum([0] + [len(p[0]) for p in parts])
    joined = [np.concatenate([p[k] for p in parts]) for k in (0, 1, 3, 4)]
    return joined[0], joined[1], np.concatenate([p[2] + o for p, o in zip(parts, base)]), joined[2], joined[3]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--teacher", required=True)
    parser.add_argument("--logits", help="reference logits of the teacher, to check that it is read correctly")
    parser.add_argument("--out", required=True)
    parser.add_argument("--minutes", type=float, default=8.0, help="for everything")
    parser.add_argument("--story-seconds", type=float, default=110.0)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    length, top, vocab = 256, 16, 4096

    teacher, teacher_tokens = load_teacher(args.teacher)
    if args.logits:
        check_teacher(teacher, args.logits)
    tokens, top_ids, top_probs = write_stories(teacher, args.story_seconds, args.batch, length, top, 1.0, 0.97)
    say("%d stories" % len(tokens))

    pieces = plain_pieces(teacher_tokens)
    SHARED.update(tokens=tokens.cpu().numpy(), pieces=pieces, length=length)
    sample = [text_of(row, pieces)[0] for row in SHARED["tokens"][:50000]]
    say("texts: %s …" % sample[0][:100].replace("\n", " "))
    tokenizer = SHARED["tokenizer"] = train_tokenizer(sample, vocab)
    say("tokenizer of %d tokens" % tokenizer.get_vocab_size())

    held, n_stories = 2048, len(tokens)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    train_stream, train_align, _, _, _ = build_stream(held, n_stories)
    valid_stream, _, valid_starts, valid_chars, valid_counts = build_stream(0, held)
    say("%.1f M tokens to train on" % (len(train_stream) / 1e6))
    stream, align = torch.from_numpy(train_stream).to(DEVICE), torch.from_numpy(train_align).to(DEVICE)
    flat_ids, flat_probs = top_ids.view(-1, top), top_probs.view(-1, top)
    held_tokens = tokens[:held].long()
    # How often a student's token stands where a teacher's token starts: the translation of one vocabulary to the other.
    spread = 3
    known = align >= 0
    pairs = tokens[:, 1:].reshape(-1)[align[known]].long() * vocab + stream[known].long()
    counts = torch.bincount(pairs, minlength=len(pieces) * vocab).view(len(pieces), vocab)
    share, meaning = counts.topk(spread, -1)
    share = share.float() / counts.sum(-1, keepdim=True).clamp(min=1)
    share[1:3], meaning[1:3] = torch.tensor([1.0] + [0.0] * (spread - 1)), 1  # the teacher's ends are the student's end
    del tokens, counts, pairs, known

    context = 512
    config = dict(vocab=vocab, dim=256, layers=11, heads=8, kv_heads=4, ff=704, eps=1e-5, context=context)
    student = Llama(config).to(DEVICE)
    with torch.no_grad():
        for name, p in student.named_parameters():
            if p.ndim > 1:
                scale = 0.02 if "embed" in name else (1 / math.sqrt(p.shape[1])) * (1 / math.sqrt(2 * config["layers"]) if name.split(".")[-2] in ("o", "down") else 1)
                p.normal_(0, scale)
        student.out.weight = student.embed.weight  # one matrix for both ends
    n_params = sum(p.numel() for p in student.parameters())
    say("student of %.2f M parameters" % (n_params / 1e6))

    decay = [p for p in student.parameters() if p.ndim > 1]
    other = [p for p in student.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW([dict(params=decay, weight_decay=0.1), dict(params=other, weight_decay=0.0)], lr=1e-3, betas=(0.9, 0.95), fused=True)
    peak, rows, likely = 3e-3, 192, 10

    def loss_of(x, y, a):
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            logits = student(x)
        logp = F.log_softmax(logits.float().view(-1, vocab), -1)
        hard = -logp.gather(1, y.view(-1, 1))[:, 0]
        a = a.view(-1)
        known = a >= 0
        a = a.clamp(min=0)
        ids, p = flat_ids[a, :likely].long(), flat_probs[a, :likely].float()
        p = (p[..., None] * share[ids]).flatten(1)
        p = p / p.sum(-1, keepdim=True).clamp(min=1e-6)
        soft = -(p * logp.gather(1, meaning[ids].flatten(1))).sum(-1)
        return torch.where(known, 0.5 * hard + 0.5 * soft, hard).mean(), hard.mean()

    compiled = torch.compile(loss_of)
    offsets = torch.arange(context, device=DEVICE)
    end_time, begin, step = START + args.minutes * 60 - 25, None, 0
    while True:
        now = time.time()
        if step == 5:
            begin = now  # compilation is over
        fraction = 0.0 if begin is None else (now - begin) / (end_time - begin)
        if fraction >= 1:
            break
        lr = peak * min(1.0, (step + 1) / 300) * (1 - fraction if fraction > 0.0 else 1.0)
        for group in optimizer.param_groups:
            group["lr"] = lr
        at = torch.randint(0, len(stream) - context - 1, (rows, 1), device=DEVICE) + offsets
        loss, hard = compiled(stream[at].long(), stream[at + 1].long(), align[at + 1])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        if step % 500 == 0:
            say("step %d loss %.4f hard %.4f lr %.5f" % (step, loss.item(), hard.item(), lr))
        step += 1
    say("%d steps, %.2f B tokens" % (step, step * rows * context / 1e9))

    # Validation: nats per character on stories neither saw, each story on its own.
    student.eval()
    nats, chars, count = 0.0, 0, 0
    bounds = list(valid_starts) + [len(valid_stream)]
    with torch.no_grad():
        for i in range(0, held, 4):
            row = torch.from_numpy(valid_stream[bounds[i] : bounds[i + 1]].astype(np.int64))[None].to(DEVICE)[:, :context]
            logp = F.log_softmax(student(row[:, :-1]).float(), -1)
            nats -= logp.gather(2, row[:, 1:, None]).sum().item()
            chars += int(valid_chars[i])
            count += row.shape[1] - 1
        # The teacher on its own tokens of the same stories.
        teacher_nats, teacher_count = 0.0, 0
        for i in range(0, held, 128):
            block = held_tokens[i : i + 128]
            logp = F.log_softmax(teacher(block[:, :-1]).float(), -1)
            picked = logp.gather(2, block[:, 1:, None])[..., 0]
            lengths = torch.from_numpy(valid_counts[i : i + 128]).to(DEVICE)
            mask = torch.arange(length, device=DEVICE)[None] < lengths[:, None]
            teacher_nats -= picked[mask].sum().item()
            teacher_count += int(mask.sum())
    report = dict(parameters=n_params, steps=step, tokens=step * rows * context, stories=n_stories, student_nats_per_token=nats / count,
                  student_nats_per_char=nats / chars, teacher_nats_per_token=teacher_nats / max(teacher_count, 1), teacher_nats_per_char=teacher_nats / int(valid_chars.sum()),
                  seconds=time.time() - START)
    say(json.dumps(report))

    vocabulary = tokenizer.get_vocab()
    names = [""] * vocab
    for text, i in vocabulary.items():
        names[i] = text
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    merges = [m if isinstance(m, str) else " ".join(m) for m in merges]
    keys = [("general.architecture", 8, "llama"), ("general.name", 8, "Tales"), ("general.license", 8, "mit"), ("llama.vocab_size", 4, vocab),
            ("llama.context_length", 4, context), ("llama.embedding_length", 4, config["dim"]), ("llama.block_count", 4, config["layers"]),
            ("llama.feed_forward_length", 4, config["ff"]), ("llama.attention.head_count", 4, config["heads"]), ("llama.attention.head_count_kv", 4, config["kv_heads"]),
            ("llama.rope.dimension_count", 4, config["dim"] // config["heads"]), ("llama.rope.freq_base", 6, 10000.0), ("llama.attention.layer_norm_rms_epsilon", 6, config["eps"]),
            ("tokenizer.ggml.model", 8, "gpt2"), ("tokenizer.ggml.pre", 8, "gpt-2"), ("tokenizer.ggml.tokens", ("arr", 8), names),
            ("tokenizer.ggml.token_type", ("arr", 5), [3 if i < 2 else 1 for i in range(vocab)]), ("tokenizer.ggml.merges", ("arr", 8), merges),
            ("tokenizer.ggml.bos_token_id", 4, 0), ("tokenizer.ggml.eos_token_id", 4, 1), ("tokenizer.ggml.add_bos_token", 7, True), ("tokenizer.ggml.add_eos_token", 7, False)]
    tensors = {gguf_name(name): p.detach().float().cpu().numpy() for name, p in student.state_dict().items() if name != "out.weight"}
    gguf_io.write(os.path.join(args.out, "tales-f16.gguf"), keys, tensors)
    with open(os.path.join(args.out, "report.json"), "w") as file:
        json.dump(report, file, indent=1)

    with torch.no_grad():
        for seed in range(3):
            torch.manual_seed(seed)
            row = [0] + tokenizer.encode("Once upon a time").ids
            for _ in range(200):
                logits = student(torch.tensor([row], device=DEVICE))[0, -1].float() / 0.8
                nxt = int(torch.multinomial(F.softmax(logits, -1), 1))
                if nxt == 1:
                    break
                row.append(nxt)
            say("sample: " + tokenizer.decode(row[1:]))


if __name__ == "__main__":
    main()
