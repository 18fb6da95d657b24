# Our initiator writes and reads the kernel's target, with each in-capsule size; the disk itself is compared.
for in_capsule in 0 16384; do
  start_kernel_target $nqn $in_capsule
  head -c 4M /dev/urandom >/tmp/data
  ringfab write "$(url $nqn 'ns=1&queues=2')" -i /tmp/data --destroy-data 1
  echo 3 >/proc/sys/vm/drop_caches
  cmp -n $((4 << 20)) /tmp/data /dev/nullb0
  ringfab read "$(url $nqn 'ns=1&queues=2')" --length 4M -o /tmp/read
  cmp /tmp/data /tmp/read
  for load in "randrw --bs 512" "write --bs 128k" "randwrite --bs 1M --depth 8"; do
    echo "--- $load"
    ringfab --json bench "$(url $nqn 'ns=1&queues=4')" --rw $load --size 64M --time 1s --warmup 0s --verify \
      --destroy-data 1 >/tmp/bench
    jq -c . /tmp/bench | cut -c 1-300
  done
  remove_kernel_target
done
