from attend.cli import main

if __name__ == "__main__":
    main(prog_name="attend")
