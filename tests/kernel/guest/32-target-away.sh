# The kernel's target throws our initiator out under a verified load and comes back; the link is cut under another.
start_kernel_target $nqn
ringfab bench "$(url $nqn 'ns=1&queues=2&depth=16&keepalive=2')" --rw randrw --bs 8k --size 32M --time 12s --warmup 0s \
  --verify --destroy-data 1 >/tmp/bench 2>&1 &
load=$!
sleep 3
rm $nvmet/ports/1/subsystems/$nqn
sleep 2
ln -s $nvmet/subsystems/$nqn $nvmet/ports/1/subsystems/
sleep 3
ip -n far link set ve0 down
sleep 4
ip -n far link set ve0 up
wait $load || { cat /tmp/bench; fail "the load"; }
cat /tmp/bench
