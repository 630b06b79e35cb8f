# The front door. `make help` lists what can be asked for.
BUILD := build
JOBS ?= $(shell nproc)

.DEFAULT_GOAL := build
.PHONY: build test help

build: ## build the library, the program, tests and benchmarks
	@cmake --preset release $(CMAKE_FLAGS) > /dev/null
	@cmake --build $(BUILD) -j $(JOBS)

test: build ## run all tests
	@cd $(BUILD) && ctest --output-on-failure -j $(JOBS)

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'
