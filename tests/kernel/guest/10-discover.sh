# The kernel's host asks our discovery controller, and connects to everything that it names.
start_target
nvme discover -t rdma -a $ours -s 4420 -o json >/tmp/discovery.json
cat /tmp/discovery.json
expect "the entry" "$(jq -r ".records[] | select(.subnqn == \"$nqn\") | \"\(.trtype) \(.adrfam) \(.traddr) \(.trsvcid)\"" /tmp/discovery.json)" "rdma ipv4 $ours 4420"
expect "private subsystems shown to a stranger" "$(jq '[.records[] | select(.subnqn | endswith("private"))] | length' /tmp/discovery.json)" 0
nvme discover -t rdma -a $ours -s 4420 -q nqn.2026-11.org.ringfab:friend -o json |
  jq -e '[.records[] | select(.subnqn | endswith("private"))] | length == 1'
nvme connect-all -t rdma -a $ours -s 4420
find_controller $nqn
wait_for 20 namespaces_there
nvme list
nvme disconnect -n $nqn
