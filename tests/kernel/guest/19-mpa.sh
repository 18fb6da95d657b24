# The corners of connection establishment with siw as the side that connects: each revision and CRC choice of each side.
for ours_is in "1 true" "2 false"; do
  read -r revision crc <<<"$ours_is"
  start_target "mpa_revision = $revision
crc = $crc"
  for siw_is in "1 0" "1 1" "2 0" "2 1"; do
    read -r siw_revision siw_crc <<<"$siw_is"
    echo "--- ours: revision $revision, crc $crc; siw: revision $siw_revision, crc $siw_crc"
    set_siw mpa_version $siw_revision
    set_siw mpa_crc_required $siw_crc
    if ((siw_revision > revision)); then
      # siw does not fall back by itself; it gets a clean answer at once, not a timeout.
      ! timeout 5 nvme connect -t rdma -a $ours -s 4420 -n $nqn -i 1 2>/tmp/said
      grep -i reset /tmp/said
      continue
    fi
    connect -i 1
    dd if=/dev/urandom of=/tmp/data bs=64k count=4 status=none
    dd if=/tmp/data of=$ns1 bs=64k oflag=direct status=none
    dd if=$ns1 of=/tmp/read bs=64k count=4 iflag=direct status=none
    cmp /tmp/data /tmp/read
    nvme disconnect -n $nqn
  done
  stop_target TERM
done

echo "--- siw asks for peer-to-peer mode"
set_siw mpa_version 2
set_siw mpa_crc_required 0
set_siw peer_to_peer 1
start_target
connect -i 2
dd if=$ns1 of=/dev/null bs=64k count=4 iflag=direct status=none
