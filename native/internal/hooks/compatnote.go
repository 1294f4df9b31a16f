package hooks

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

const (
	noteSection = ".note.cuda.fwd_compatibility"
	noteOwner   = "NVIDIA Corporation"
	noteHeader  = 12
	noteLimit   = 1 << 16
)

type hostVersions struct{ driver, cuda string }

// compatNote is what a compatibility library says about itself: the CUDA version that it brings, and the major versions
// of the drivers it works with.
type compatNote struct {
	CUDA   string `json:"CUDA Version"`
	Driver []int
}

// readNote reads the note of a library; nil if it has none.
func readNote(library io.ReaderAt) (*compatNote, error) {
	file, err := elf.NewFile(library)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	section := file.Section(noteSection)
	if section == nil || section.Type != elf.SHT_NOTE {
		return nil, nil
	}
	if section.Size < noteHeader || section.Size > noteLimit {
		return nil, fmt.Errorf("section %s has %d bytes", noteSection, section.Size)
	}
	data, err := section.Data()
	if err != nil {
		return nil, err
	}
	nameSize := uint64(file.ByteOrder.Uint32(data))
	size := uint64(file.ByteOrder.Uint32(data[4:]))
	if section.Addralign > noteLimit || nameSize > noteLimit || size > noteLimit { // so that nothing below overflows
		return nil, fmt.Errorf("section %s is cut off, or aligned to %d bytes", noteSection, section.Addralign)
	}
	begin := noteHeader + alignUp(nameSize, section.Addralign)
	if noteHeader+nameSize > uint64(len(data)) || begin+size > uint64(len(data)) {
		return nil, fmt.Errorf("section %s is cut off", noteSection)
	}
	if string(bytes.TrimRight(data[noteHeader:noteHeader+nameSize], "\x00")) != noteOwner || size == 0 {
		return nil, nil
	}
	note := &compatNote{}
	if err := json.Unmarshal(bytes.TrimRight(data[begin:begin+size], "\x00"), note); err != nil {
		return nil, fmt.Errorf("section %s: %w", noteSection, err)
	}
	return note, nil
}

func alignUp(size, alignment uint64) uint64 {
	if alignment <= 1 {
		return size
	}
	return (size + alignment - 1) / alignment * alignment
}

// decide says whether a compatibility library of a driver version is to be used. The note decides where there is one:
// by driver versions, or by CUDA versions if one of those is not known. Without a note a newer major version does.
func decide(compatDriver string, note *compatNote, host hostVersions) bool {
	compat, hostDriver := numbers(compatDriver), numbers(host.driver)
	known := compat != nil && hostDriver != nil
	switch {
	case note != nil && known:
		return slices.Contains(note.Driver, hostDriver[0]) && slices.Compare(compat, hostDriver) > 0
	case note != nil:
		noteCUDA, hostCUDA := numbers(note.CUDA), numbers(host.cuda)
		return noteCUDA != nil && hostCUDA != nil && slices.Compare(noteCUDA, hostCUDA) > 0
	case host.cuda != "" || !known:
		return false
	default:
		return compat[0] > hostDriver[0]
	}
}

// numbers reads a version of one to three numbers, without zeros at the end; nil if it is none.
func numbers(version string) []int {
	parts := strings.Split(version, ".")
	if version == "" || len(parts) > 3 {
		return nil
	}
	read := make([]int, len(parts))
	for index, part := range parts {
		number, err := strconv.Atoi(part)
		if err != nil || number < 0 {
			return nil
		}
		read[index] = number
	}
	for len(read) > 1 && read[len(read)-1] == 0 {
		read = read[:len(read)-1]
	}
	return read
}
