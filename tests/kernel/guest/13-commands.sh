# Each I/O command by itself, against what a file says the disk should hold.
start_target
connect -i 2
head -c 65536 /dev/urandom >/tmp/data
head -c 65536 /dev/zero >/tmp/zeroes

for ns in $ns1 $ns2; do
  block=$(blockdev --getss $ns)
  last=$((65536 / block - 1))
  echo "--- $ns with blocks of $block"
  nvme write $ns -s 8 -c $last -z 65536 -d /tmp/data
  nvme read $ns -s 8 -c $last -z 65536 -d /tmp/read
  cmp /tmp/data /tmp/read
  nvme compare $ns -s 8 -c $last -z 65536 -d /tmp/data
  ! nvme compare $ns -s 8 -c $last -z 65536 -d /tmp/zeroes 2>/tmp/said
  grep -i 'compare' /tmp/said
  nvme flush $ns
  nvme write $ns -s 8 -c 0 -z $block -d /tmp/zeroes -f
  nvme read $ns -s 8 -c 0 -z $block -d /tmp/read
  cmp -n $block /tmp/zeroes /tmp/read
  nvme write $ns -s 8 -c $last -z 65536 -d /tmp/data
  nvme write-zeroes $ns -s 9 -c $((last - 2))
  nvme read $ns -s 8 -c $last -z 65536 -d /tmp/read
  cmp -n $block /tmp/data /tmp/read
  cmp -n $((65536 - 2 * block)) /tmp/zeroes <(tail -c +$((block + 1)) /tmp/read)
  cmp <(tail -c $block /tmp/data) <(tail -c $block /tmp/read)
  nvme dsm $ns -d -s 8,16 -b 4,2
  blkdiscard -o $((1024 * block)) -l $((64 * block)) $ns
  blkdiscard -z -o $((2048 * block)) -l $((64 * block)) $ns

  echo "--- out of range"
  end=$(nvme id-ns $ns -o json | jq .nsze)
  nvme read $ns -s $((end - 1)) -c 0 -z $block -d /tmp/read
  ! nvme read $ns -s $end -c 0 -z $block -d /tmp/read 2>/tmp/said
  grep -i 'LBA' /tmp/said
  ! nvme read $ns -s $((end - 1)) -c 1 -z $((2 * block)) -d /tmp/read
  ! nvme write-zeroes $ns -s $end -c 0
  ! nvme io-passthru $ns -o 0x7d -n 1
done
is_live
