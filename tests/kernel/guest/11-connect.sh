# One and four I/O queues, small and large depths; what is refused is refused with its reason.
start_target
for options in "-i 1" "-i 4 -Q 16" "-i 4 -Q 1024"; do
  echo "--- $options"
  connect $options
  is_live
  dd if=$ns1 of=/dev/null bs=4k count=16 iflag=direct status=none
  nvme disconnect -n $nqn
done
expect "connections with four I/O queues" "$(grep -c 'connected.*queue=4' "$target_log")" 2

echo "--- refused"
! nvme connect -t rdma -a $ours -s 4420 -n nqn.2026-11.org.ringfab:nowhere
! nvme connect -t rdma -a $ours -s 4420 -n nqn.2026-11.org.ringfab:private -q nqn.2026-11.org.ringfab:stranger
dmesg | tail -n 8 | grep -i 'invalid' 
nvme connect -t rdma -a $ours -s 4420 -n nqn.2026-11.org.ringfab:private -q nqn.2026-11.org.ringfab:friend
find_controller nqn.2026-11.org.ringfab:private
nvme disconnect -n nqn.2026-11.org.ringfab:private

echo "--- host names without the usual form"
connect -q testhost
nvme disconnect -n $nqn
