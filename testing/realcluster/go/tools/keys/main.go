// Command keys writes the key pair with which an API server signs service account tokens: keys PRIVATE PUBLIC.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"log"
	"os"
)

func write(path, kind string, der []byte, err error) {
	if err == nil {
		err = os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
	}
	if err != nil {
		log.Fatalf("%s: %v", path, err)
	}
}

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: keys PRIVATE PUBLIC")
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		log.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	write(os.Args[1], "EC PRIVATE KEY", der, err)
	der, err = x509.MarshalPKIXPublicKey(&key.PublicKey)
	write(os.Args[2], "PUBLIC KEY", der, err)
}
