# Every admin command that nvme-cli has for us, against what the configuration says.
start_target
connect -i 2
device=/dev/$controller

echo "--- identify"
nvme id-ctrl $device -H
identify=$(nvme id-ctrl $device -o json)
field() { jq -r ".$1" <<<"$identify"; }
expect serial "$(field sn | xargs)" KERNEL-0001
expect model "$(field mn | xargs)" "Ringfab under test"
expect subnqn "$(field subnqn)" $nqn
expect nn "$(field nn)" "$(field nn | grep -E '^[0-9]+$')"
nvme id-ns $ns1 -H
expect "blocks of namespace 1" "$(nvme id-ns $ns1 -o json | jq .nsze)" $((256 * 2048))
expect "blocks of namespace 2" "$(nvme id-ns $ns2 -o json | jq .nsze)" $((64 * 256))
expect "512-byte blocks" "$(blockdev --getss $ns1)" 512
expect "4096-byte blocks" "$(blockdev --getss $ns2)" 4096
nvme ns-descs $ns1
nguid=$(nvme ns-descs $ns1 -o json | jq -r '.. | .nguid? // empty')
[[ $nguid =~ ^[0-9a-f]{32}$ && $nguid != 00000000000000000000000000000000 ]] || fail "NGUID $nguid"
expect "NGUID in sysfs" "$(tr -d - <"/sys/class/block/$(basename $ns1)/nguid")" "$nguid"
expect "active namespaces" "$(nvme list-ns $device -o json | jq -c '[.. | .nsid? // empty]')" '[1,2]'
nvme id-iocs $device
nvme cmdset-ind-id-ns $ns1 || echo "(not supported)"
nvme nvm-id-ctrl $device
nvme id-nvmset $device && fail "there are no NVM sets" || true
nvme list-ctrl $device || echo "(not supported)"
nvme list-subsys

echo "--- log pages"
nvme supported-log-pages $device
nvme error-log $device -e 4
nvme smart-log $device
nvme smart-log $ns1 || echo "(not by namespace)"
nvme fw-log $device
nvme changed-ns-list-log $device
nvme effects-log $device -H
nvme get-log $device -i 0 -l 1024 -b >/tmp/pages
listed=$(od -An -v -tu4 -w4 -j 0 /tmp/pages | awk '$1 % 2 { printf "%d ", NR - 1 }')
echo "listed: $listed"
for page in 0 1 2 3 4 5; do grep -qw $page <<<"$listed" || fail "page $page is missing"; done
for page in $listed; do
  nvme get-log $device -i "$page" -l 512 >/dev/null
  nvme get-log $device -i "$page" -l 4 -b >/dev/null
done
for page in 6 8 112 192 255; do
  ! nvme get-log $device -i $page -l 512 2>/dev/null || fail "page $page is not listed, and read"
done

echo "--- an error gets its entry"
before=$(nvme error-log $device -e 1 -o json | jq '.errors[0].error_count')
! nvme read $ns1 -s $((256 * 2048)) -c 0 -z 512 -d /dev/null
! nvme admin-passthru $device -o 0x7f
after=$(nvme error-log $device -e 1 -o json | jq '.errors[0].error_count')
nvme error-log $device -e 3
((after > before)) || fail "errors before $before, after $after"

echo "--- features"
for feature in 0x01 0x02 0x04 0x05 0x06 0x07 0x08 0x09 0x0a 0x0b 0x0e 0x0f 0x16 0x81; do
  size=0
  [[ $feature != 0x0e ]] || size=8
  [[ $feature != 0x81 ]] || size=16
  for select in 0 3; do
    nvme get-feature $device -f $feature -s $select -l $size || echo "feature $feature select $select: not supported"
  done
done
nvme get-feature $device -f 7 -H
nvme get-feature $device -f 0x0f -H
nvme set-feature $device -f 0x0b -v 0x100
nvme get-feature $device -f 0x0b | grep -q 'value:0x0*100$'
nvme set-feature $device -f 0x06 -v 1
nvme show-regs $device -H
is_live
