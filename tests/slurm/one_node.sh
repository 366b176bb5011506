#!/usr/bin/env bash
# A Slurm of one node on this machine, for the tests: `one_node.sh start FOLDER`, `one_node.sh stop FOLDER`.
# Needs Debian's slurm-wlm and munge, and root; everything it writes is in FOLDER. Prints the SLURM_CONF to use.
set -euo pipefail
action=$1 folder=$2
host=$(hostname -s)
if [ "$action" = stop ]; then
    for name in slurmd slurmctld munged; do
        [ ! -f "$folder/$name.pid" ] || kill "$(cat "$folder/$name.pid")" 2>/dev/null || true
    done
    exit 0
fi
mkdir -p "$folder/state" "$folder/spool" "$folder/munge"
chmod 755 "$folder" "$folder/munge"
head -c 1024 /dev/urandom > "$folder/munge/key"
chmod 600 "$folder/munge/key"
munged --key-file="$folder/munge/key" --socket="$folder/munge/socket" --pid-file="$folder/munged.pid" \
    --log-file="$folder/munged.log" --seed-file="$folder/munge/seed" --force
read -r control daemon < <(python3 -c '
import socket
some = [socket.socket() for _ in range(2)]
for one in some: one.bind(("127.0.0.1", 0))
print(*(one.getsockname()[1] for one in some))')
cat > "$folder/slurm.conf" <<CONF
ClusterName=gramian
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmctldPort=$control
SlurmdPort=$daemon
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=10
MessageTimeout=60
AccountingStorageType=accounting_storage/none
JobRequeue=1
JobCompType=jobcomp/none
SlurmdParameters=config_overrides
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=$host Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF=$folder/slurm.conf
slurmctld -c
slurmd -c
for _ in $(seq 60); do
    if sinfo --noheader --format=%T 2>/dev/null | grep -q idle; then
        echo "$folder/slurm.conf"
        exit 0
    fi
    sleep 1
done
tail -n 20 "$folder"/*.log >&2
exit 1
