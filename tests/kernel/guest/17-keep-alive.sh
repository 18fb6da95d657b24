# An idle connection stays; a host that is cut off is noticed by both ends, and comes back.
start_target
connect -i 1 -k 2 -c 1 -l 60
sleep 6
is_live
! target_said 'keep-alive.*expired|keep alive.*expired' || fail "an idle host was thrown out"
ip link set ve1 down
wait_for 15 not_live
wait_for 15 target_said '[Kk]eep.[Aa]live'
ip link set ve1 up
ip addr show ve1 | grep -q $theirs || ip addr add $theirs/24 dev ve1
wait_for 30 is_live
dd if=$ns1 of=/dev/null bs=4k count=4 iflag=direct status=none
