from attend.cli import main

main(prog_name="attend")
