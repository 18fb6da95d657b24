# The corners of connection establishment with siw as the side that accepts.
start_kernel_target $nqn
for required in 0 1; do
  for crc in on off; do
    echo "--- siw requires crc: $required; ours: $crc"
    set_siw mpa_crc_required $required
    ringfab --json bench "$(url $nqn "ns=1&crc=$crc")" --rw randrw --bs 16k --size 4M --time 1s --warmup 0s --verify \
      --destroy-data 1 >/dev/null
  done
done
echo "--- siw will not have CRCs"
set_siw mpa_crc_required 0
set_siw mpa_crc_strict 1
ringfab list "$(url $nqn crc=off)"
! ringfab list "$(url $nqn crc=on)" 2>/tmp/said
cat /tmp/said
grep -qi 'reject\|refuse' /tmp/said
