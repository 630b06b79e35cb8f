# Two machines of network namespaces, joined by a veth link that tbf shapes, each with one rank of a job of Open MPI, or of MPICH with
# $mpi=mpich. Needs root and iproute2. Source this file, then machines_make RATE, machines_run PROGRAM ARGUMENTS…, machines_end.
machine_a=tna$$ machine_b=tnb$$
mpi=${mpi:-openmpi}
if [ "$mpi" = mpich ]; then mpirun=$(command -v mpirun.mpich || true); else mpirun=$(command -v mpirun.openmpi || command -v mpirun || true); fi
# Each machine has a processor of its own where there are two.
machine_cpus=(0 $(($(nproc) > 1)))
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

machines_can() { # whether they can be made here
    [ "$(id -u)" = 0 ] && command -v ip tc unshare > /dev/null && [ -n "$mpirun" ] && "$mpirun" --version 2> /dev/null | grep -qE 'Open MPI|OpenRTE|HYDRA' &&
        ip netns add $machine_a 2> /dev/null && ip netns del $machine_a
}

machines_make() { # rate for tc
    ip netns add $machine_a && ip netns add $machine_b &&
        ip link add v0 netns $machine_a type veth peer name v0 netns $machine_b || return 1
    local n=1 space
    for space in $machine_a $machine_b; do
        ip -n $space addr add 10.77.0.$n/24 dev v0 && ip -n $space link set v0 up && ip -n $space link set lo up &&
            ip netns exec $space tc qdisc add dev v0 root tbf rate "$1" burst 256kb latency 50ms || return 1
        n=2
    done
    # What mpirun starts instead of ssh: the command on the other machine.
    machines_agent=$(mktemp)
    printf '#!/bin/bash\n[ "$1" != -x ] || shift\nshift\nexec ip netns exec %s unshare --uts taskset -c %s bash -c "hostname machine-b; $*"\n' $machine_b "${machine_cpus[1]}" > "$machines_agent"
    chmod +x "$machines_agent"
}

machines_run() { # program, arguments…
    local line=("$mpirun" -n 2 --host 10.77.0.1:1,10.77.0.2:1 --bind-to none --mca plm_rsh_agent "$machines_agent"
        --mca btl tcp,self --mca btl_tcp_if_include v0 --mca oob_tcp_if_include v0 -x XDG_CACHE_HOME ${TENON_NET_MODULE:+-x TENON_NET_MODULE})
    [ "$mpi" != mpich ] || line=("$mpirun" -n 2 -hosts 10.77.0.1,10.77.0.2 -launcher ssh -launcher-exec "$machines_agent" -iface v0)
    # shellcheck disable=SC2016
    exec ip netns exec $machine_a unshare --uts taskset -c "${machine_cpus[0]}" bash -c 'hostname machine-a; exec "$@"' - "${line[@]}" "$@"
}

machines_end() {
    local space
    for space in $machine_a $machine_b; do
        # shellcheck disable=SC2046
        kill -KILL $(ip netns pids $space 2> /dev/null) 2> /dev/null
        ip netns del $space 2> /dev/null
    done
    rm -f "${machines_agent:-}"
}
