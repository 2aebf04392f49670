package main

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
)

const told = `shop 1 reads 0; both have the lock
shop 2 reads 0; both have the lock
the editor finds 2 readers, and waits
shop 3 came later, and waits behind the editor
shop 1 sees that 2 wait, and leaves
shop 2 sees that 2 wait, and leaves
the editor is alone, and writes 110
the editor continues as a reader, and shop 3 reads 110 at the same time
a late write of the editor is refused: a later holder has used the price
`

func TestReadersShareThePricesAndTheWriterIsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		if err := run("", &out); err != nil {
			t.Fatal(err)
		}
		if out.String() != told {
			t.Errorf("it says\n%s\nand not\n%s", out.String(), strings.TrimSpace(told))
		}
	})
}
