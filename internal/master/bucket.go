package master

import (
	"slices"

	"github.com/quorumlock/quorumlock/internal/wire"
)

// Buckets is how many shares the names of a whole cluster have. It is the same for all clients and clusters, so no two
// clients can count differently; a cluster grows by moving the slots of buckets to other masters.
const Buckets = 16

// bucketTags are the hash tags of the buckets' slots: each in the middle of its sixteenth of the slots (within 128 of
// it), so that masters with equal ranges of slots have equal numbers of buckets. The tags and their order must never
// change, and all have one length.
var bucketTags = [Buckets]string{
	"{qlb0}", "{ql2a}", "{ql06}", "{ql28}", "{qlb1}", "{ql43}", "{ql07}", "{ql29}",
	"{ql79}", "{ql2c}", "{ql04}", "{qlab}", "{ql78}", "{ql2b}", "{ql05}", "{qlac}",
}

// BucketTag returns the hash tag of a bucket, counted from 0.
func BucketTag(bucket int) string { return bucketTags[bucket] }

// IsBucket reports whether a hash tag belongs to a bucket.
func IsBucket(tag string) bool { return slices.Contains(bucketTags[:], tag) }

// Bucket returns the bucket of a name: by the slot that a cluster would give it, which is the slot
// of its hash tag if it has one.
func Bucket(name string) int { return Slot(name) / (HashSlots / Buckets) }

// Slot returns the hash slot of a key, which is the slot of its hash tag if it has one.
func Slot(key string) int {
	if tag := wire.HashTag(key); tag != "" {
		key = tag[1 : len(tag)-1]
	}
	return slotOf(key)
}

// slotOf returns the hash slot of a text without a hash tag: CRC16 (XMODEM), as the cluster specification has it.
func slotOf(text string) int {
	var crc uint16
	for i := range len(text) {
		crc = crc<<8 ^ crc16[byte(crc>>8)^text[i]]
	}
	return int(crc & (HashSlots - 1))
}

// crc16 has the CRC of each byte.
var crc16 = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
		table[i] = crc
	}
	return table
}()
